"""The LLVM IR of the native worker pool, which ``pool.py`` compiles and drives.

Every thread processes the same table of commands. A command is three words: function, argument, flags. There is a
barrier between two commands that all threads share; a run of serial commands between two shared ones costs a single
barrier, which thread 0 keeps closed while it runs them alone.

A barrier is two numbers: ARRIVED counts the threads that reached it; the last one sets ARRIVED to zero and advances
GENERATION, which the others watch. Only thread 0 waits for ARRIVED, at a closed barrier and at the end of a table. JOB
takes the role of GENERATION between tables: workers never return to a table after they arrive at its end.

A waiting thread spins, then counts itself as a sleeper and sleeps in a futex. It counts itself before the system
compares the word, and a waker looks for sleepers after it changed the word, both in sequentially consistent order, so
no wake-up is lost.

Ctrl-C: Python runs signal handlers only when a native call returns. A submission therefore has a deadline; the thread
that completes a barrier after the deadline sets ENDING, so that all threads leave the table there, and ``submit``
returns the number of finished commands. The caller runs its handlers, then submits the rest. A table with a kernel that
may take long runs on a thread of its own while the main thread waits in Python. To end it, every thread gets a signal
whose handler jumps out of the kernel: a kernel holds no locks and owns no memory, so only its output is left
incomplete, and generated code pays nothing for it. The workers end, since their barriers are in an undefined state.
"""
from __future__ import annotations

from string import Template
from typing import Final

# The control block: byte offsets. Fields that threads write while others spin on adjacent ones are 128 bytes apart,
# since processors fetch cache lines in pairs.
JOB: Final = 0
ARRIVED: Final = 128
GENERATION: Final = 256
ENDING: Final = 260
JOB_SLEEPERS: Final = 384
ARRIVED_SLEEPERS: Final = 388
GENERATION_SLEEPERS: Final = 392
TABLE: Final = 512
COUNT: Final = 520
THREADS: Final = 528
SPIN: Final = 536
QUIT: Final = 540
DEADLINE: Final = 544
SLICE: Final = 552
WORKERS: Final = 640
CONTROL_BYTES: Final = WORKERS

# Worker records, one per thread behind the control block: address of the control block, thread number, the system's
# thread id; whether the thread's kernel may be interrupted, and where it continues then (space for the C library's
# sigjmp_buf).
WORKER_TID: Final = 16
ARMED: Final = 24
JUMP: Final = 32
WORKER_BYTES: Final = JUMP + 512
COMMAND_BYTES: Final = 24
SERIAL: Final = 1
_HINT: Final = {"x86_64": "void @llvm.x86.sse2.pause()", "arm64": "void @llvm.aarch64.hint(i32 1)"}
_HINT_DECLARED: Final = {"x86_64": "void @llvm.x86.sse2.pause()", "arm64": "void @llvm.aarch64.hint(i32)"}
# ARM: user code cannot read the cycle counter, but the constant-rate counter.
_CLOCK: Final = {"x86_64": "i64 @llvm.readcyclecounter()", "arm64": "i64 @llvm.readsteadycounter()"}
ARCHITECTURES: Final = tuple(_HINT)

_TEXT: Final = Template("""
declare i64 @syscall(i64, ...)
declare i32 @__sigsetjmp(ptr, i32) returns_twice
declare void @siglongjmp(ptr, i32) noreturn
declare $hint_declared
declare $clock

; Wait until the word at %word differs from %old; returns its new value.
define internal i32 @wait_change(ptr %word, i32 %old, ptr %sleepers, i32 %spin) noinline {
entry:
  br label %look
look:
  %left = phi i32 [ %spin, %entry ], [ %fewer, %patient ]
  %seen = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %seen, %old
  br i1 %same, label %idle, label %changed
idle:
  %tired = icmp eq i32 %left, 0
  br i1 %tired, label %lie_down, label %patient
patient:
  call $hint
  %fewer = sub i32 %left, 1
  br label %look
lie_down:
  %slept = atomicrmw add ptr %sleepers, i32 1 seq_cst
  br label %sleep
sleep:
  %ignored = call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i32 128, i32 %old, ptr null)  ; FUTEX_WAIT_PRIVATE
  %woken = load atomic i32, ptr %word seq_cst, align 4
  %spurious = icmp eq i32 %woken, %old
  br i1 %spurious, label %sleep, label %get_up
get_up:
  %rose = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %changed
changed:
  %new = phi i32 [ %seen, %look ], [ %woken, %get_up ]
  ret i32 %new
}

; Wake all who sleep on %word. Call it after changing the word.
define internal void @wake(ptr %word, ptr %sleepers) {
  %count = load atomic i32, ptr %sleepers seq_cst, align 4
  %none = icmp eq i32 %count, 0
  br i1 %none, label %done, label %call
call:
  %ignored = call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i32 129, i32 2147483647)  ; FUTEX_WAKE_PRIVATE
  br label %done
done:
  ret void
}

define internal i1 @late(ptr %control) {
  %deadline_at = getelementptr i8, ptr %control, i64 $DEADLINE
  %deadline = load i64, ptr %deadline_at
  %now = call $clock
  %left = sub i64 %deadline, %now
  %late = icmp slt i64 %left, 0
  ret i1 %late
}

; Open the barrier: only for the thread that completed it.
define internal void @release(ptr %control) {
  %arrived = getelementptr i8, ptr %control, i64 $ARRIVED
  store atomic i32 0, ptr %arrived monotonic, align 4
  %late = call i1 @late(ptr %control)
  %ending = zext i1 %late to i32
  %ending_at = getelementptr i8, ptr %control, i64 $ENDING
  store i32 %ending, ptr %ending_at
  %generation = getelementptr i8, ptr %control, i64 $GENERATION
  %old = load i32, ptr %generation
  %new = add i32 %old, 1
  store atomic i32 %new, ptr %generation seq_cst, align 4
  %sleepers = getelementptr i8, ptr %control, i64 $GENERATION_SLEEPERS
  call void @wake(ptr %generation, ptr %sleepers)
  ret void
}

; Arrive at a barrier without waiting; returns how many were there before.
define internal i32 @arrive(ptr %control) {
  %arrived = getelementptr i8, ptr %control, i64 $ARRIVED
  %before = atomicrmw add ptr %arrived, i32 1 seq_cst
  %sleepers = getelementptr i8, ptr %control, i64 $ARRIVED_SLEEPERS
  call void @wake(ptr %arrived, ptr %sleepers)
  ret i32 %before
}

; Arrive at a barrier and wait until it opens; the last of %threads opens it.
define internal void @barrier(ptr %control, i32 %threads) {
  ; The generation must be read before arriving: afterwards the barrier may open at any moment.
  %generation = getelementptr i8, ptr %control, i64 $GENERATION
  %old = load atomic i32, ptr %generation acquire, align 4
  %before = call i32 @arrive(ptr %control)
  %others = sub i32 %threads, 1
  %last = icmp eq i32 %before, %others
  br i1 %last, label %open, label %wait
open:
  call void @release(ptr %control)
  ret void
wait:
  %spin_at = getelementptr i8, ptr %control, i64 $SPIN
  %spin = load i32, ptr %spin_at
  %sleepers = getelementptr i8, ptr %control, i64 $GENERATION_SLEEPERS
  %new = call i32 @wait_change(ptr %generation, i32 %old, ptr %sleepers, i32 %spin)
  ret void
}

; Thread 0 waits until all workers have arrived; the barrier stays closed.
define internal void @gather(ptr %control, i32 %threads) {
entry:
  %workers = sub i32 %threads, 1
  %arrived = getelementptr i8, ptr %control, i64 $ARRIVED
  %sleepers = getelementptr i8, ptr %control, i64 $ARRIVED_SLEEPERS
  %spin_at = getelementptr i8, ptr %control, i64 $SPIN
  %spin = load i32, ptr %spin_at
  %first = load atomic i32, ptr %arrived acquire, align 4
  br label %check
check:
  %count = phi i32 [ %first, %entry ], [ %more, %wait ]
  %all = icmp eq i32 %count, %workers
  br i1 %all, label %done, label %wait
wait:
  %more = call i32 @wait_change(ptr %arrived, i32 %count, ptr %sleepers, i32 %spin)
  br label %check
done:
  ret void
}

define internal i1 @is_serial(ptr %table, i64 %index) alwaysinline {
  %flags_at = getelementptr [3 x i64], ptr %table, i64 %index, i64 2
  %flags = load i64, ptr %flags_at
  %bit = and i64 %flags, $SERIAL
  %serial = icmp ne i64 %bit, 0
  ret i1 %serial
}

define internal void @call(ptr %table, i64 %index, i64 %tid, i64 %threads) alwaysinline {
  %command = getelementptr [3 x i64], ptr %table, i64 %index
  %function = load ptr, ptr %command
  %args_at = getelementptr i8, ptr %command, i64 8
  %args = load ptr, ptr %args_at
  call void %function(ptr %args, i64 %tid, i64 %threads)
  ret void
}

; Walk a table whose first and last commands are shared by all threads; returns how many commands are done.
define internal i64 @walk(ptr %control, ptr %table, i64 %count, i64 %tid, i64 %threads) noinline {
entry:
  %threads32 = trunc i64 %threads to i32
  %ending_at = getelementptr i8, ptr %control, i64 $ENDING
  %leader = icmp eq i64 %tid, 0
  br label %shared
shared:
  %index = phi i64 [ 0, %entry ], [ %resume, %open ]
  call void @call(ptr %table, i64 %index, i64 %tid, i64 %threads)
  %next = add i64 %index, 1
  %finished = icmp eq i64 %next, %count
  br i1 %finished, label %leave, label %between
between:
  %serial = call i1 @is_serial(ptr %table, i64 %next)
  %leads = and i1 %serial, %leader
  br i1 %leads, label %close, label %meet
meet:
  call void @barrier(ptr %control, i32 %threads32)
  br label %skip
skip:
  %skipped = phi i64 [ %next, %meet ], [ %skipped_next, %skip_one ]
  %skip_more = call i1 @is_serial(ptr %table, i64 %skipped)
  br i1 %skip_more, label %skip_one, label %open
skip_one:
  %skipped_next = add i64 %skipped, 1
  br label %skip
close:
  call void @gather(ptr %control, i32 %threads32)
  br label %alone
alone:
  %own = phi i64 [ %next, %close ], [ %own_next, %alone ]
  call void @call(ptr %table, i64 %own, i64 0, i64 1)
  %own_next = add i64 %own, 1
  %own_more = call i1 @is_serial(ptr %table, i64 %own_next)
  br i1 %own_more, label %alone, label %reopen
reopen:
  call void @release(ptr %control)
  br label %open
open:
  %resume = phi i64 [ %skipped, %skip ], [ %own_next, %reopen ]
  %ending = load i32, ptr %ending_at
  %go_on = icmp eq i32 %ending, 0
  br i1 %go_on, label %shared, label %leave
leave:
  %done = phi i64 [ %next, %shared ], [ %resume, %open ]
  ret i64 %done
}

; A worker's life. Its control block is fresh, so the job number it starts from is 0.
define ptr @worker(ptr %start) {
entry:
  %jump = getelementptr i8, ptr %start, i64 $JUMP
  %again = call i32 @__sigsetjmp(ptr %jump, i32 1) returns_twice
  %stopped = icmp ne i32 %again, 0
  br i1 %stopped, label %leave, label %begin
begin:
  %armed_at = getelementptr i8, ptr %start, i64 $ARMED
  store atomic i64 1, ptr %armed_at seq_cst, align 8
  %control = load ptr, ptr %start
  %tid_at = getelementptr i8, ptr %start, i64 8
  %tid = load i64, ptr %tid_at
  %id = call i64 (i64, ...) @syscall(i64 $gettid)
  %id_at = getelementptr i8, ptr %start, i64 $WORKER_TID
  store atomic i64 %id, ptr %id_at release, align 8
  %job_at = getelementptr i8, ptr %control, i64 $JOB
  %sleepers = getelementptr i8, ptr %control, i64 $JOB_SLEEPERS
  %spin_at = getelementptr i8, ptr %control, i64 $SPIN
  %spin = load i32, ptr %spin_at
  %quit_at = getelementptr i8, ptr %control, i64 $QUIT
  %table_at = getelementptr i8, ptr %control, i64 $TABLE
  %count_at = getelementptr i8, ptr %control, i64 $COUNT
  %threads_at = getelementptr i8, ptr %control, i64 $THREADS
  br label %wait
wait:
  %known = phi i32 [ 0, %begin ], [ %job, %work ]
  %job = call i32 @wait_change(ptr %job_at, i32 %known, ptr %sleepers, i32 %spin)
  %quit = load i32, ptr %quit_at
  %stay = icmp eq i32 %quit, 0
  br i1 %stay, label %work, label %leave
work:
  %table = load ptr, ptr %table_at
  %count = load i64, ptr %count_at
  %threads = load i64, ptr %threads_at
  %done = call i64 @walk(ptr %control, ptr %table, i64 %count, i64 %tid, i64 %threads)
  %before = call i32 @arrive(ptr %control)
  br label %wait
leave:
  ret ptr null
}

; The signal handler that takes a thread out of whatever it computes: the signal's value is the thread's record.
define void @stopped(i32 %signal, ptr %info, ptr %context) {
  %record_at = getelementptr i8, ptr %info, i64 24
  %record = load ptr, ptr %record_at
  %armed_at = getelementptr i8, ptr %record, i64 $ARMED
  %armed = load atomic i64, ptr %armed_at seq_cst, align 8
  %may = icmp ne i64 %armed, 0
  br i1 %may, label %jump, label %ignore
jump:
  %to = getelementptr i8, ptr %record, i64 $JUMP
  call void @siglongjmp(ptr %to, i32 1)
  unreachable
ignore:
  ret void
}

; Run a table as @submit does, on a thread that @stopped may take out of it; -1 if it did.
define i64 @submit_stoppable(ptr %control, ptr %table, i64 %count, ptr %record) {
entry:
  %armed_at = getelementptr i8, ptr %record, i64 $ARMED
  %jump = getelementptr i8, ptr %record, i64 $JUMP
  %again = call i32 @__sigsetjmp(ptr %jump, i32 1) returns_twice
  %stopped = icmp ne i32 %again, 0
  br i1 %stopped, label %leave, label %go_on
go_on:
  store atomic i64 1, ptr %armed_at seq_cst, align 8
  %done = call i64 @submit(ptr %control, ptr %table, i64 %count)
  store atomic i64 0, ptr %armed_at seq_cst, align 8
  ret i64 %done
leave:
  store atomic i64 0, ptr %armed_at seq_cst, align 8
  ret i64 -1
}

; Let the workers go, for good.
define void @dismiss(ptr %control) {
  %quit_at = getelementptr i8, ptr %control, i64 $QUIT
  store i32 1, ptr %quit_at
  call void @publish(ptr %control)
  ret void
}

define internal void @publish(ptr %control) {
  %job_at = getelementptr i8, ptr %control, i64 $JOB
  %job = atomicrmw add ptr %job_at, i32 1 seq_cst
  %sleepers = getelementptr i8, ptr %control, i64 $JOB_SLEEPERS
  call void @wake(ptr %job_at, ptr %sleepers)
  ret void
}

; Run a table, as far as the time slice goes; returns how many commands are done. Serial commands at either end, and all
; of them if there is one thread only, run here without anybody else being woken.
define i64 @submit(ptr %control, ptr %table, i64 %count) {
entry:
  %threads_at = getelementptr i8, ptr %control, i64 $THREADS
  %threads = load i64, ptr %threads_at
  %threads32 = trunc i64 %threads to i32
  %single = icmp eq i64 %threads, 1
  %slice_at = getelementptr i8, ptr %control, i64 $SLICE
  %slice = load i64, ptr %slice_at
  %now = call $clock
  %deadline = add i64 %now, %slice
  %deadline_at = getelementptr i8, ptr %control, i64 $DEADLINE
  store i64 %deadline, ptr %deadline_at
  br label %head
head:
  %index = phi i64 [ 0, %entry ], [ %next, %alone ], [ %resume, %joined ]
  %finished = icmp eq i64 %index, %count
  br i1 %finished, label %leave, label %look
look:
  %flagged = call i1 @is_serial(ptr %table, i64 %index)
  %serial = or i1 %single, %flagged
  br i1 %serial, label %alone, label %scan
alone:
  call void @call(ptr %table, i64 %index, i64 0, i64 1)
  %next = add i64 %index, 1
  %late = call i1 @late(ptr %control)
  br i1 %late, label %leave, label %head
scan:
  %end = phi i64 [ %count, %look ], [ %last, %scan ]
  %last = sub i64 %end, 1
  %trailing = call i1 @is_serial(ptr %table, i64 %last)
  br i1 %trailing, label %scan, label %together
together:
  %part = getelementptr [3 x i64], ptr %table, i64 %index
  %part_count = sub i64 %end, %index
  %table_at = getelementptr i8, ptr %control, i64 $TABLE
  store ptr %part, ptr %table_at
  %count_at = getelementptr i8, ptr %control, i64 $COUNT
  store i64 %part_count, ptr %count_at
  call void @publish(ptr %control)
  %part_done = call i64 @walk(ptr %control, ptr %part, i64 %part_count, i64 0, i64 %threads)
  call void @gather(ptr %control, i32 %threads32)
  %arrived = getelementptr i8, ptr %control, i64 $ARRIVED
  store atomic i32 0, ptr %arrived monotonic, align 4
  %resume = add i64 %index, %part_done
  %cut = icmp ult i64 %part_done, %part_count
  br i1 %cut, label %leave, label %joined
joined:
  br label %head
leave:
  %done = phi i64 [ %index, %head ], [ %next, %alone ], [ %resume, %together ]
  ret i64 %done
}

; Fill in the arguments of a graph's commands. A graph is five words: commands, how many, entries, how many, values. An
; entry is three: where to store, byte offset of a value, what to add to it.
define internal void @fill(ptr %graph) {
start:
  %entries_at = getelementptr i8, ptr %graph, i64 16
  %entries = load ptr, ptr %entries_at
  %number_at = getelementptr i8, ptr %graph, i64 24
  %number = load i64, ptr %number_at
  %values_at = getelementptr i8, ptr %graph, i64 32
  %values = load ptr, ptr %values_at
  br label %head
head:
  %index = phi i64 [ 0, %start ], [ %next, %fill ]
  %finished = icmp eq i64 %index, %number
  br i1 %finished, label %filled, label %fill
fill:
  %entry = getelementptr [3 x i64], ptr %entries, i64 %index
  %target = load ptr, ptr %entry
  %value_at = getelementptr i8, ptr %entry, i64 8
  %offset = load i64, ptr %value_at
  %plus_at = getelementptr i8, ptr %entry, i64 16
  %plus = load i64, ptr %plus_at
  %from = getelementptr i8, ptr %values, i64 %offset
  %value = load i64, ptr %from
  %word = add i64 %value, %plus
  store i64 %word, ptr %target
  %next = add i64 %index, 1
  br label %head
filled:
  ret void
}

; Run a graph's commands as @submit does, on its values.
define i64 @replay(ptr %control, ptr %graph) {
  call void @fill(ptr %graph)
  %commands = load ptr, ptr %graph
  %count_at = getelementptr i8, ptr %graph, i64 8
  %count = load i64, ptr %count_at
  %done = call i64 @submit(ptr %control, ptr %commands, i64 %count)
  ret i64 %done
}

; The same for a few serial commands, which need neither workers nor slices.
define void @replay_alone(ptr %graph) {
start:
  call void @fill(ptr %graph)
  %commands = load ptr, ptr %graph
  %count_at = getelementptr i8, ptr %graph, i64 8
  %count = load i64, ptr %count_at
  br label %head
head:
  %index = phi i64 [ 0, %start ], [ %next, %run ]
  %finished = icmp eq i64 %index, %count
  br i1 %finished, label %done, label %run
run:
  call void @call(ptr %commands, i64 %index, i64 0, i64 1)
  %next = add i64 %index, 1
  br label %head
done:
  ret void
}

; Spin %rounds times as a waiting thread does; returns the ticks of the clock this took.
define i64 @calibrate(ptr %word, i32 %rounds) {
entry:
  %start = call $clock
  br label %look
look:
  %left = phi i32 [ %rounds, %entry ], [ %fewer, %look ]
  %seen = load atomic i32, ptr %word acquire, align 4
  call $hint
  %fewer = sub i32 %left, 1
  %tired = icmp eq i32 %fewer, 0
  br i1 %tired, label %done, label %look
done:
  %end = call $clock
  %ticks = sub i64 %end, %start
  ret i64 %ticks
}
""")

_OFFSETS: Final = {
    "JOB": JOB, "ARRIVED": ARRIVED, "GENERATION": GENERATION, "ENDING": ENDING, "JOB_SLEEPERS": JOB_SLEEPERS,
    "ARRIVED_SLEEPERS": ARRIVED_SLEEPERS, "GENERATION_SLEEPERS": GENERATION_SLEEPERS, "TABLE": TABLE, "COUNT": COUNT,
    "THREADS": THREADS, "SPIN": SPIN, "QUIT": QUIT, "DEADLINE": DEADLINE, "SLICE": SLICE, "WORKER_TID": WORKER_TID,
    "SERIAL": SERIAL, "ARMED": ARMED, "JUMP": JUMP,
}


def runtime_text(architecture: str, futex: int, gettid: int) -> str:
    """Return the pool's IR for an architecture and its system call numbers."""
    return _TEXT.substitute(_OFFSETS, hint=_HINT[architecture], hint_declared=_HINT_DECLARED[architecture],
                            clock=_CLOCK[architecture], futex=futex, gettid=gettid)
