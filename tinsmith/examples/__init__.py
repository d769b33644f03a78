"""Programs to start from: ``tinsmith examples`` lists them, ``tinsmith examples mnist`` runs one."""
