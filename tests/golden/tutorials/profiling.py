# As in the tutorial but for its misspelt pstat and sort_stabts, a sleep of 1 s, and the imports it leaves out.
import os,pstats,time
from tinygrad import helpers
PROFILE_FN="out.proc"
with helpers.Profiling(enabled=True, fn=(fn:=os.path.join(os.getcwd(),PROFILE_FN) if PROFILE_FN else None)): time.sleep(0.05)
pstats.Stats(PROFILE_FN).strip_dirs().sort_stats("tottime").print_stats(1) # this returns the profiled function that had taken the longest time per-call (ref. "tottime")
