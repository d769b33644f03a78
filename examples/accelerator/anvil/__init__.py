"""Anvil: a vector machine with hardware loops and a matrix unit, its assembler, its simulator and its device."""
