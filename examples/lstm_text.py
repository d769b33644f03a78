"""Run ``tinsmith.examples.lstm_text``: its source has the options."""
import runpy

if __name__ == "__main__":
    runpy.run_module("tinsmith.examples.lstm_text", run_name="__main__", alter_sys=True)
