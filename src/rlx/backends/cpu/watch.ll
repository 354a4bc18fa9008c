; Runs that may be ended before they are done. The code of programs knows nothing of it: such a run gets another function
; for `parallel`, which looks whether it may go on before each piece of a kernel, and leaves `rlx_main` for good by longjmp
; where it may not. All that lies in between is frames of generated code, which own nothing; kernels that take what a
; skipped one should have made never start.
;
; The dims of such a run have the address of a watch before them, and the first argument of every kernel is its dims:
;   watch: i64 the address of a flag that cancels, i64 ns of the monotonic clock at which it ends, i64 threads,
;          then, from byte 64 on, where longjmp goes
;   frame: as `rlx_run` of dispatch.ll writes it

declare i32 @_setjmp(ptr) returns_twice
declare void @longjmp(ptr, i32) noreturn
declare i32 @clock_gettime(i32, ptr)

define internal i1 @over(ptr %watch) {
entry:
  %time = alloca [2 x i64], align 8
  %flag = load ptr, ptr %watch, align 8
  %cancelled = load atomic i64, ptr %flag monotonic, align 8
  %one = icmp ne i64 %cancelled, 0
  br i1 %one, label %yes, label %look
look:
  %p1 = getelementptr i64, ptr %watch, i64 1
  %end = load i64, ptr %p1, align 8
  %told = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %p2 = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %p2, align 8
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  %late = icmp sgt i64 %now, %end
  ret i1 %late
yes:
  ret i1 true
}

; A chunk in pieces of some milliseconds, by the cycles that its kernel is thought to take. Pieces keep to whole lines.
define internal void @watched_chunk(ptr %box, i64 %chunk, i64 %thread) {
entry:
  %frame = load ptr, ptr %box, align 8
  %b1 = getelementptr i64, ptr %box, i64 1
  %watch = load ptr, ptr %b1, align 8
  %b2 = getelementptr i64, ptr %box, i64 2
  %piece = load i64, ptr %b2, align 8
  %kernel = load ptr, ptr %frame, align 8
  %p1 = getelementptr i64, ptr %frame, i64 1
  %args = load ptr, ptr %p1, align 8
  %p2 = getelementptr i64, ptr %frame, i64 2
  %total = load i64, ptr %p2, align 8
  %p3 = getelementptr i64, ptr %frame, i64 3
  %per = load i64, ptr %p3, align 8
  %p4 = getelementptr i64, ptr %frame, i64 4
  %base = load ptr, ptr %p4, align 8
  %p5 = getelementptr i64, ptr %frame, i64 5
  %stride = load i64, ptr %p5, align 8
  %begin = mul i64 %chunk, %per
  %next = add i64 %begin, %per
  %beyond = icmp sgt i64 %next, %total
  %end = select i1 %beyond, i64 %total, i64 %next
  %skip = mul i64 %thread, %stride
  %scratch = getelementptr i8, ptr %base, i64 %skip
  br label %loop
loop:
  %at = phi i64 [ %begin, %entry ], [ %to, %run ]
  %more = icmp slt i64 %at, %end
  br i1 %more, label %ask, label %leave
ask:
  %over = call i1 @over(ptr %watch)
  br i1 %over, label %leave, label %run
run:
  %far = add i64 %at, %piece
  %last = icmp sgt i64 %far, %end
  %to = select i1 %last, i64 %end, i64 %far
  call void %kernel(ptr %args, i64 %at, i64 %to, ptr %scratch)
  br label %loop
leave:
  ret void
}

define void @rlx_watched_parallel(ptr %chunk, ptr %frame, i64 %count, i64 %most) {
entry:
  %box = alloca [3 x i64], align 8
  %p1 = getelementptr i64, ptr %frame, i64 1
  %args = load ptr, ptr %p1, align 8
  %dims = load ptr, ptr %args, align 8
  %before = getelementptr i64, ptr %dims, i64 -1
  %watch = load ptr, ptr %before, align 8
  %p3 = getelementptr i64, ptr %frame, i64 3
  %per = load i64, ptr %p3, align 8
  %p6 = getelementptr i64, ptr %frame, i64 6
  %cycles = load i64, ptr %p6, align 8
  %w2 = getelementptr i64, ptr %watch, i64 2
  %threads = load i64, ptr %w2, align 8
  %fewer = icmp slt i64 %threads, %most
  %limit = select i1 %fewer, i64 %threads, i64 %most
  ; per / (cycles / count / piece), from above, in whole lines where chunks are
  %all = mul i64 %count, $PIECE_CYCLES
  %parts.0 = sdiv i64 %cycles, %all
  %parts = add i64 %parts.0, 1
  %round.0 = add i64 %per, %parts.0
  %round = sdiv i64 %round.0, %parts
  %low = and i64 %per, 63
  %lines = icmp eq i64 %low, 0
  %line.0 = add i64 %round, 63
  %line = and i64 %line.0, -64
  %piece = select i1 %lines, i64 %line, i64 %round
  %b1 = getelementptr i64, ptr %box, i64 1
  %b2 = getelementptr i64, ptr %box, i64 2
  store ptr %frame, ptr %box, align 8
  store ptr %watch, ptr %b1, align 8
  store i64 %piece, ptr %b2, align 8
  call void @rlx_parallel(ptr @watched_chunk, ptr %box, i64 %count, i64 %limit)
  %over = call i1 @over(ptr %watch)
  br i1 %over, label %end, label %leave
end:
  %w8 = getelementptr i8, ptr %watch, i64 64
  call void @longjmp(ptr %w8, i32 1)
  unreachable
leave:
  ret void
}

; 1 if the run was ended, 0 if it got to its end.
define i64 @rlx_watched_main(ptr %main, ptr %buffers, ptr %dims, ptr %arena, i64 %threads) noinline {
entry:
  %before = getelementptr i64, ptr %dims, i64 -1
  %watch = load ptr, ptr %before, align 8
  %w8 = getelementptr i8, ptr %watch, i64 64
  %back = call i32 @_setjmp(ptr %w8) returns_twice
  %ended = icmp ne i32 %back, 0
  br i1 %ended, label %leave, label %go
go:
  call void %main(ptr %buffers, ptr %dims, ptr %arena, ptr @rlx_watched_parallel, i64 %threads)
  ret i64 0
leave:
  ret i64 1
}
