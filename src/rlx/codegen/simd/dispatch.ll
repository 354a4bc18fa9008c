; Runs a kernel: in one go where the work is small, else in chunks on the pool, of %grain cycles at least and %each a
; thread at most. Flat nests count single elements, whose weight is in instructions of a vector; their pieces are multiples
; of 64 elements, so that no two threads share a line. Runs that are watched read the frame too (backends/cpu/watch.ll).
define internal void @rlx_chunk(ptr %frame, i64 %chunk, i64 %thread) #0 {
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
  %over = icmp sgt i64 %next, %total
  %end = select i1 %over, i64 %total, i64 %next
  %skip = mul i64 %thread, %stride
  %scratch = getelementptr i8, ptr %base, i64 %skip
  call void %kernel(ptr %args, i64 %begin, i64 %end, ptr %scratch)
  ret void
}
define internal void @rlx_run(ptr %kernel, ptr %args, i64 %total, i64 %weight, i64 %flat,
                              ptr %base, i64 %stride, ptr %parallel, i64 %threads,
                              i64 %grain, i64 %each) #0 {
entry:
  %frame = alloca [7 x i64], align 16
  %some = icmp sgt i64 %total, 0
  br i1 %some, label %start, label %end
start:
  %heavy = mul i64 %total, %weight
  %vector = sdiv i64 %heavy, 16
  %is.flat = icmp ne i64 %flat, 0
  %cycles = select i1 %is.flat, i64 %vector, i64 %heavy
  %chunks.by.work = sdiv i64 %cycles, %grain
  %most = mul i64 %threads, %each
  %few = icmp slt i64 %chunks.by.work, %most
  %chunks.1 = select i1 %few, i64 %chunks.by.work, i64 %most
  %short = icmp slt i64 %total, %chunks.1
  %chunks.2 = select i1 %short, i64 %total, i64 %chunks.1
  %alone = icmp sle i64 %chunks.2, 1
  %single = icmp sle i64 %threads, 1
  %serial = or i1 %alone, %single
  br i1 %serial, label %direct, label %fork
direct:
  call void %kernel(ptr %args, i64 0, i64 %total, ptr %base)
  br label %end
fork:
  %round.0 = add i64 %total, %chunks.2
  %round.1 = sub i64 %round.0, 1
  %per.0 = sdiv i64 %round.1, %chunks.2
  %line.0 = add i64 %per.0, 63
  %line.1 = and i64 %line.0, -64
  %per = select i1 %is.flat, i64 %line.1, i64 %per.0
  %count.0 = add i64 %total, %per
  %count.1 = sub i64 %count.0, 1
  %count = sdiv i64 %count.1, %per
  store ptr %kernel, ptr %frame, align 8
  %p1 = getelementptr i64, ptr %frame, i64 1
  store ptr %args, ptr %p1, align 8
  %p2 = getelementptr i64, ptr %frame, i64 2
  store i64 %total, ptr %p2, align 8
  %p3 = getelementptr i64, ptr %frame, i64 3
  store i64 %per, ptr %p3, align 8
  %p4 = getelementptr i64, ptr %frame, i64 4
  store ptr %base, ptr %p4, align 8
  %p5 = getelementptr i64, ptr %frame, i64 5
  store i64 %stride, ptr %p5, align 8
  %p6 = getelementptr i64, ptr %frame, i64 6
  store i64 %cycles, ptr %p6, align 8
  call void %parallel(ptr @rlx_chunk, ptr %frame, i64 %count, i64 %threads)
  br label %end
end:
  ret void
}
