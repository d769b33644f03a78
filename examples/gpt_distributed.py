"""Run ``tinsmith.examples.gpt_distributed``: its source has the options."""
import runpy

if __name__ == "__main__":
    runpy.run_module("tinsmith.examples.gpt_distributed", run_name="__main__", alter_sys=True)
