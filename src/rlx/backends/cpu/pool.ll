; A process-wide thread pool: one caller at a time gives out chunks 0 .. n-1, workers and the caller claim them one by
; one. pool.py fills in $pause and $futex, and explains the Python side; this file explains the memory order.
;
; @state is generation:20 | limit:12 | count:16 | next:16. A job is posted by exchanging the whole word; a chunk is
; claimed by exchanging a word that was looked at for the same one with next + 1, if it still stands there. Only threads
; whose number is below the limit claim: scratch memory of a job has room for so many. Two things have to be right:
;
; 1. A claim and the job that it belongs to. A worker may look at generation g and be preempted while g+1 is posted: then
;    its exchange fails. So the limit and the count that it looked at are those of the job that it claims from. The job's
;    fields are read after the claim. They were written before the exchange that posted the job (release), and every
;    claim continues that exchange's release sequence (acquire), so they are at least as new; and they are not newer,
;    because the caller overwrites them only after @done has reached the count, which needs this very chunk. A worker
;    that claims nothing reads no field. Should the word have come back to what it was after 2^20 jobs, the claim is one
;    of the job that stands there now, with the same limit.
; 2. @done. It is set to 0 before posting, when nobody can be adding to it: each addition belongs to a claimed chunk, and
;    the caller has waited for all of those.
;
; Jobs of more than 2^15 chunks are posted in several batches.
;
; Sleep: a worker counts itself in @sleepers, then the kernel compares the upper half of @state with what the worker saw
; and sleeps only if it is equal; the caller changes @state, then reads @sleepers. Both orders are seq_cst, so one of the
; two notices. Only sleepers below the limit are woken: each waits for a bit of its own (all from 31 on share one).
; Generations repeat after 2^20 jobs; a worker that sleeps because of that misses one job, no more: the
; caller takes every chunk that nobody else takes, and waits only for claimed ones. Nothing depends on a worker.
;
; Every word has 128 bytes for itself (two cache lines: x86 prefetches them in pairs).

@state    = internal global [16 x i64] zeroinitializer, align 128
@done     = internal global [16 x i64] zeroinitializer, align 128
@sleepers = internal global [16 x i64] zeroinitializer, align 128
@lock     = internal global [16 x i64] zeroinitializer, align 128  ; 1 while a caller owns the pool
@job      = internal global { ptr, ptr, i64, [13 x i64] } zeroinitializer, align 128  ; function, frame, first chunk
@threads  = internal global i64 1, align 128                      ; the caller counts as one; these four change rarely
@spins    = internal global i64 0
@alive    = internal global i64 0                                 ; workers that exist
@started  = internal global i64 0
@stop     = internal global i64 0

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sched_yield()
declare i64 @syscall(i64, ...)
$declare_pause

; Whether there is a chunk for this thread.
define internal i1 @mine(i64 %seen, i64 %thread) alwaysinline {
  %next = and i64 %seen, 65535
  %above = lshr i64 %seen, 16
  %count = and i64 %above, 65535
  %left = icmp ult i64 %next, %count
  %upper = lshr i64 %seen, 32
  %limit = and i64 %upper, 4095
  %below = icmp ult i64 %thread, %limit
  %both = and i1 %left, %below
  ret i1 %both
}

define internal void @drain(i64 %thread) noinline {
entry:
  br label %look
look:
  %seen = load atomic i64, ptr @state acquire, align 8
  %some = call i1 @mine(i64 %seen, i64 %thread)
  br i1 %some, label %claim, label %empty
claim:
  %wanted = add i64 %seen, 1
  %pair = cmpxchg ptr @state, i64 %seen, i64 %wanted acq_rel monotonic
  %claimed = extractvalue { i64, i1 } %pair, 1
  br i1 %claimed, label %run, label %look
run:
  %next = and i64 %seen, 65535
  %function = load ptr, ptr @job
  %frame = load ptr, ptr getelementptr (i8, ptr @job, i64 8)
  %first = load i64, ptr getelementptr (i8, ptr @job, i64 16)
  %chunk = add i64 %first, %next
  call void %function(ptr %frame, i64 %chunk, i64 %thread)
  %ignored = atomicrmw add ptr @done, i64 1 release
  br label %look
empty:
  ret void
}

define internal ptr @worker(ptr %argument) {
entry:
  %thread = ptrtoint ptr %argument to i64
  %high = icmp ugt i64 %thread, 31
  %place = select i1 %high, i64 31, i64 %thread
  %wide = shl i64 1, %place
  %bit = trunc i64 %wide to i32
  br label %work
work:
  call void @drain(i64 %thread)
  %spins = load atomic i64, ptr @spins monotonic, align 8
  br label %idle
idle:
  %spun = phi i64 [ 0, %work ], [ %spun.next, %again ]
  %seen = load atomic i64, ptr @state acquire, align 8
  %some = call i1 @mine(i64 %seen, i64 %thread)
  br i1 %some, label %work, label %nothing
nothing:
  ; after the look at @state: the stop that goes with it is visible, so no worker sleeps through it
  %stop = load atomic i64, ptr @stop monotonic, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %leave, label %stay
stay:
  %tired = icmp uge i64 %spun, %spins
  br i1 %tired, label %sleep, label %again
again:
  $pause
  %spun.next = add i64 %spun, 1
  br label %idle
sleep:
  %before = atomicrmw add ptr @sleepers, i64 1 seq_cst
  %upper = lshr i64 %seen, 32
  %expected = trunc i64 %upper to i32
  ; 137 is FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG
  %woken = call i64 (i64, ...) @syscall(i64 $futex, ptr getelementptr (i8, ptr @state, i64 4), i32 137, i32 %expected, ptr null, ptr null, i32 %bit)
  %after = atomicrmw sub ptr @sleepers, i64 1 seq_cst
  br label %work
leave:
  %left = atomicrmw sub ptr @alive, i64 1 release
  ret ptr null
}

; Creates the workers, detached and with all signals blocked: signals belong to the interpreter's threads. A thread
; that cannot be created is done without. The owner of @lock calls this.
define internal void @start() noinline {
entry:
  %id = alloca i64
  %all = alloca [16 x i64]
  %kept = alloca [16 x i64]
  %filled = call i32 @sigfillset(ptr %all)
  %blocked = call i32 @pthread_sigmask(i32 2, ptr %all, ptr %kept)
  %threads = load i64, ptr @threads
  br label %loop
loop:
  %thread = phi i64 [ 1, %entry ], [ %thread.next, %step ]
  %more = icmp ult i64 %thread, %threads
  br i1 %more, label %create, label %finish
create:
  %born = atomicrmw add ptr @alive, i64 1 monotonic
  %argument = inttoptr i64 %thread to ptr
  %error = call i32 @pthread_create(ptr %id, ptr null, ptr @worker, ptr %argument)
  %created = icmp eq i32 %error, 0
  br i1 %created, label %detach, label %failed
detach:
  %handle = load i64, ptr %id
  %detached = call i32 @pthread_detach(i64 %handle)
  br label %step
failed:
  %unborn = atomicrmw sub ptr @alive, i64 1 monotonic
  br label %step
step:
  %thread.next = add i64 %thread, 1
  br label %loop
finish:
  %restored = call i32 @pthread_sigmask(i32 2, ptr %kept, ptr null)
  store i64 1, ptr @started
  ret void
}

; Makes @state a new generation with %count chunks for threads below %limit and wakes up to %helpers of them.
define internal void @post(i64 %count, i64 %limit, i64 %helpers) {
entry:
  %old = load atomic i64, ptr @state monotonic, align 8
  %generation = lshr i64 %old, 44
  %generation.next = add i64 %generation, 1
  %high = shl i64 %generation.next, 44
  %limited = shl i64 %limit, 32
  %middle = shl i64 %count, 16
  %low = or i64 %limited, %middle
  %new = or i64 %high, %low
  %replaced = atomicrmw xchg ptr @state, i64 %new seq_cst
  %sleepers = load atomic i64, ptr @sleepers seq_cst, align 8
  %asleep = icmp ne i64 %sleepers, 0
  br i1 %asleep, label %wake, label %leave
wake:
  %wanted = trunc i64 %helpers to i32
  %all = icmp ugt i64 %limit, 31
  %place = select i1 %all, i64 32, i64 %limit
  %wide = shl i64 1, %place
  %below = sub i64 %wide, 1
  %bits = trunc i64 %below to i32
  ; 138 is FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG
  %woken = call i64 (i64, ...) @syscall(i64 $futex, ptr getelementptr (i8, ptr @state, i64 4), i32 138, i32 %wanted, ptr null, ptr null, i32 %bits)
  br label %leave
leave:
  ret void
}

define internal void @batch(ptr %function, ptr %frame, i64 %first, i64 %count, i64 %limit) {
entry:
  store atomic i64 0, ptr @done monotonic, align 8
  store ptr %function, ptr @job
  store ptr %frame, ptr getelementptr (i8, ptr @job, i64 8)
  store i64 %first, ptr getelementptr (i8, ptr @job, i64 16)
  %helpers = sub i64 %count, 1
  call void @post(i64 %count, i64 %limit, i64 %helpers)
  call void @drain(i64 0)
  %spins = load atomic i64, ptr @spins monotonic, align 8
  br label %wait
wait:
  %spun = phi i64 [ 0, %entry ], [ %spun.next, %pause ], [ %spun, %yield ]
  %done = load atomic i64, ptr @done acquire, align 8
  %all = icmp eq i64 %done, %count
  br i1 %all, label %leave, label %wait.on
wait.on:
  %tired = icmp uge i64 %spun, %spins
  br i1 %tired, label %yield, label %pause
pause:
  $pause
  %spun.next = add i64 %spun, 1
  br label %wait
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
leave:
  ret void
}

define internal void @serial(ptr %function, ptr %frame, i64 %chunks) {
entry:
  br label %loop
loop:
  %chunk = phi i64 [ 0, %entry ], [ %chunk.next, %run ]
  %more = icmp slt i64 %chunk, %chunks
  br i1 %more, label %run, label %leave
run:
  call void %function(ptr %frame, i64 %chunk, i64 0)
  %chunk.next = add i64 %chunk, 1
  br label %loop
leave:
  ret void
}

define i64 @rlx_pool_acquire() {
  %pair = cmpxchg ptr @lock, i64 0, i64 1 acquire monotonic
  %won = extractvalue { i64, i1 } %pair, 1
  %answer = zext i1 %won to i64
  ret i64 %answer
}

define void @rlx_pool_release() {
  store atomic i64 0, ptr @lock release, align 8
  ret void
}

; Chunks run under numbers below %most. Whoever finds the pool taken (another caller, or a chunk that calls again) runs
; its chunks itself.
define void @rlx_parallel(ptr %function, ptr %frame, i64 %chunks, i64 %most) {
entry:
  %threads = load atomic i64, ptr @threads monotonic, align 8
  %fewer = icmp ult i64 %most, %threads
  %limit = select i1 %fewer, i64 %most, i64 %threads
  %lonely = icmp ule i64 %limit, 1
  %few = icmp sle i64 %chunks, 1
  %alone = or i1 %lonely, %few
  br i1 %alone, label %serially, label %try
try:
  %won = call i64 @rlx_pool_acquire()
  %mine = icmp ne i64 %won, 0
  br i1 %mine, label %own, label %serially
own:
  %started = load i64, ptr @started
  %fresh = icmp eq i64 %started, 0
  br i1 %fresh, label %begin, label %loop.entry
begin:
  call void @start()
  br label %loop.entry
loop.entry:
  br label %loop
loop:
  %first = phi i64 [ 0, %loop.entry ], [ %first.next, %run ]
  %left = sub i64 %chunks, %first
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %run, label %release
run:
  %large = icmp ugt i64 %left, 32768
  %count = select i1 %large, i64 32768, i64 %left
  call void @batch(ptr %function, ptr %frame, i64 %first, i64 %count, i64 %limit)
  %first.next = add i64 %first, %count
  br label %loop
release:
  call void @rlx_pool_release()
  ret void
serially:
  call void @serial(ptr %function, ptr %frame, i64 %chunks)
  ret void
}

; Ends all workers and sets how many come next time. The owner of @lock calls this.
define void @rlx_pool_resize(i64 %threads, i64 %spins) {
entry:
  store atomic i64 1, ptr @stop monotonic, align 8
  call void @post(i64 0, i64 4095, i64 2147483647)
  br label %wait
wait:
  %alive = load atomic i64, ptr @alive acquire, align 8
  %ended = icmp eq i64 %alive, 0
  br i1 %ended, label %set, label %yield
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
set:
  store atomic i64 0, ptr @stop monotonic, align 8
  store i64 0, ptr @started
  store atomic i64 %spins, ptr @spins monotonic, align 8
  store atomic i64 %threads, ptr @threads monotonic, align 8
  ret void
}

; In the child of a fork there are no workers, and whoever owned the pool is not there to give it back.
define void @rlx_pool_forget() {
  %old = load i64, ptr @state
  %generation = lshr i64 %old, 44
  %generation.next = add i64 %generation, 1
  %idle = shl i64 %generation.next, 44
  store i64 %idle, ptr @state
  store i64 0, ptr @sleepers
  store i64 0, ptr @alive
  store i64 0, ptr @started
  store i64 0, ptr @stop
  store atomic i64 0, ptr @lock seq_cst, align 8
  ret void
}

define i64 @rlx_pool_threads() {
  %threads = load atomic i64, ptr @threads monotonic, align 8
  ret i64 %threads
}
