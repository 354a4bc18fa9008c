; Sorts n elements of a in ascending order; b is room for as many. @W@ is an integer type, @B@ its size in bytes.
; Runs of 16 by insertion, then merges from a to b and back; the merge has no branch that data decide.
define internal void @rlx_merge_sort_@W@(ptr noalias %a, ptr noalias %b, i64 %n) #0 {
entry:
  %some = icmp sgt i64 %n, 1
  br i1 %some, label %run, label %done
run:
  %start = phi i64 [0, %entry], [%next, %run.end]
  %next = add i64 %start, 16
  %short = icmp slt i64 %n, %next
  %stop = select i1 %short, i64 %n, i64 %next
  %first = add i64 %start, 1
  br label %insert
insert:
  %i = phi i64 [%first, %run], [%i.next, %insert.end]
  %inside = icmp slt i64 %i, %stop
  br i1 %inside, label %take, label %run.end
take:
  %p.i = getelementptr @W@, ptr %a, i64 %i
  %x = load @W@, ptr %p.i, align @B@
  br label %look
look:
  %j = phi i64 [%i, %take], [%j.less, %shift]
  %j.less = sub i64 %j, 1
  %more = icmp sgt i64 %j, %start
  br i1 %more, label %compare, label %insert.end
compare:
  %p.less = getelementptr @W@, ptr %a, i64 %j.less
  %y = load @W@, ptr %p.less, align @B@
  %greater = icmp sgt @W@ %y, %x
  br i1 %greater, label %shift, label %insert.end
shift:
  %p.j = getelementptr @W@, ptr %a, i64 %j
  store @W@ %y, ptr %p.j, align @B@
  br label %look
insert.end:
  %p.place = getelementptr @W@, ptr %a, i64 %j
  store @W@ %x, ptr %p.place, align @B@
  %i.next = add i64 %i, 1
  br label %insert
run.end:
  %runs.left = icmp slt i64 %next, %n
  br i1 %runs.left, label %run, label %level
level:
  %width = phi i64 [16, %run.end], [%wider, %level.end]
  %from = phi ptr [%a, %run.end], [%to, %level.end]
  %to = phi ptr [%b, %run.end], [%from, %level.end]
  %sorted = icmp sge i64 %width, %n
  br i1 %sorted, label %finish, label %pair
pair:
  %low = phi i64 [0, %level], [%high.0, %pair.end]
  %middle.0 = add i64 %low, %width
  %high.0 = add i64 %middle.0, %width
  %middle.over = icmp slt i64 %n, %middle.0
  %middle = select i1 %middle.over, i64 %n, i64 %middle.0
  %high.over = icmp slt i64 %n, %high.0
  %high = select i1 %high.over, i64 %n, i64 %high.0
  %left.last = sub i64 %middle, 1
  %right.last = sub i64 %high, 1
  br label %merge
merge:
  %l = phi i64 [%low, %pair], [%l.next, %merge]
  %r = phi i64 [%middle, %pair], [%r.next, %merge]
  %k = phi i64 [%low, %pair], [%k.next, %merge]
  %l.open = icmp slt i64 %l, %middle
  %r.open = icmp slt i64 %r, %high
  %l.at = select i1 %l.open, i64 %l, i64 %left.last
  %r.at = select i1 %r.open, i64 %r, i64 %right.last
  %p.l = getelementptr @W@, ptr %from, i64 %l.at
  %p.r = getelementptr @W@, ptr %from, i64 %r.at
  %left = load @W@, ptr %p.l, align @B@
  %right = load @W@, ptr %p.r, align @B@
  %less = icmp sle @W@ %left, %right
  %r.closed = xor i1 %r.open, true
  %wins = or i1 %less, %r.closed
  %takes.left = and i1 %l.open, %wins
  %chosen = select i1 %takes.left, @W@ %left, @W@ %right
  %p.k = getelementptr @W@, ptr %to, i64 %k
  store @W@ %chosen, ptr %p.k, align @B@
  %step.l = zext i1 %takes.left to i64
  %step.r = sub i64 1, %step.l
  %l.next = add i64 %l, %step.l
  %r.next = add i64 %r, %step.r
  %k.next = add i64 %k, 1
  %merging = icmp slt i64 %k.next, %high
  br i1 %merging, label %merge, label %pair.end
pair.end:
  %pairs.left = icmp slt i64 %high.0, %n
  br i1 %pairs.left, label %pair, label %level.end
level.end:
  %wider = add i64 %width, %width
  br label %level
finish:
  %home = icmp eq ptr %from, %a
  br i1 %home, label %done, label %copy
copy:
  %bytes = mul i64 %n, @B@
  call void @llvm.memcpy.p0.p0.i64(ptr align @B@ %a, ptr align @B@ %from, i64 %bytes, i1 false)
  br label %done
done:
  ret void
}
