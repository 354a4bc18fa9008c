; Sorts n elements of a, keys of 32 bits above positions, of which those of equal keys lie in order; b is room for as many.
; Many go by their keys' bytes, the least first, each time to where counts say that their byte begins: the order of equals
; stays. A byte that is the same everywhere is passed by. Few are merged.
define internal void @rlx_sort_i64(ptr noalias %a, ptr noalias %b, i64 %n) #0 {
entry:
  %counts = alloca [1024 x i32], align 64
  %few = icmp slt i64 %n, @MANY@
  br i1 %few, label %merge, label %clear
merge:
  call void @rlx_merge_sort_i64(ptr %a, ptr %b, i64 %n)
  ret void
clear:
  %z = phi i64 [0, %entry], [%z.next, %clear]
  %p.z = getelementptr i32, ptr %counts, i64 %z
  store <8 x i32> zeroinitializer, ptr %p.z, align 32
  %z.next = add i64 %z, 8
  %clearing = icmp slt i64 %z.next, 1024
  br i1 %clearing, label %clear, label %count
count:
  %c = phi i64 [0, %clear], [%c.next, %count]
  %p.c = getelementptr i64, ptr %a, i64 %c
  %c.x = load i64, ptr %p.c, align 8
  %c.flipped = xor i64 %c.x, -9223372036854775808
  %c.byte.0 = lshr i64 %c.flipped, 32
  %c.byte.1 = lshr i64 %c.flipped, 40
  %c.byte.2 = lshr i64 %c.flipped, 48
  %c.3 = lshr i64 %c.flipped, 56
  %c.0 = and i64 %c.byte.0, 255
  %c.1 = and i64 %c.byte.1, 255
  %c.2 = and i64 %c.byte.2, 255
  %p.0 = getelementptr i32, ptr %counts, i64 %c.0
  %p.base.1 = getelementptr i32, ptr %counts, i64 256
  %p.1 = getelementptr i32, ptr %p.base.1, i64 %c.1
  %p.base.2 = getelementptr i32, ptr %counts, i64 512
  %p.2 = getelementptr i32, ptr %p.base.2, i64 %c.2
  %p.base.3 = getelementptr i32, ptr %counts, i64 768
  %p.3 = getelementptr i32, ptr %p.base.3, i64 %c.3
  %n.0 = load i32, ptr %p.0, align 4
  %n.1 = load i32, ptr %p.1, align 4
  %n.2 = load i32, ptr %p.2, align 4
  %n.3 = load i32, ptr %p.3, align 4
  %more.0 = add i32 %n.0, 1
  %more.1 = add i32 %n.1, 1
  %more.2 = add i32 %n.2, 1
  %more.3 = add i32 %n.3, 1
  store i32 %more.0, ptr %p.0, align 4
  store i32 %more.1, ptr %p.1, align 4
  store i32 %more.2, ptr %p.2, align 4
  store i32 %more.3, ptr %p.3, align 4
  %c.next = add i64 %c, 1
  %counting = icmp slt i64 %c.next, %n
  br i1 %counting, label %count, label %pass
pass:
  %number = phi i64 [0, %count], [%number.next, %pass.end]
  %from = phi ptr [%a, %count], [%from.next, %pass.end]
  %to = phi ptr [%b, %count], [%to.next, %pass.end]
  %first = mul i64 %number, 256
  %row = getelementptr i32, ptr %counts, i64 %first
  %bits = mul i64 %number, 8
  %shift = add i64 %bits, 32
  %some = load i64, ptr %from, align 8
  %some.flipped = xor i64 %some, -9223372036854775808
  %some.high = lshr i64 %some.flipped, %shift
  %some.byte = and i64 %some.high, 255
  %p.some = getelementptr i32, ptr %row, i64 %some.byte
  %equals = load i32, ptr %p.some, align 4
  %equals.wide = zext i32 %equals to i64
  %alike = icmp eq i64 %equals.wide, %n
  br i1 %alike, label %pass.end, label %begin
begin:
  %d = phi i64 [0, %pass], [%d.next, %begin]
  %before = phi i32 [0, %pass], [%before.next, %begin]
  %p.d = getelementptr i32, ptr %row, i64 %d
  %here = load i32, ptr %p.d, align 4
  store i32 %before, ptr %p.d, align 4
  %before.next = add i32 %before, %here
  %d.next = add i64 %d, 1
  %beginning = icmp slt i64 %d.next, 256
  br i1 %beginning, label %begin, label %move
move:
  %m = phi i64 [0, %begin], [%m.next, %move]
  %p.m = getelementptr i64, ptr %from, i64 %m
  %x = load i64, ptr %p.m, align 8
  %x.flipped = xor i64 %x, -9223372036854775808
  %x.high = lshr i64 %x.flipped, %shift
  %x.byte = and i64 %x.high, 255
  %p.x = getelementptr i32, ptr %row, i64 %x.byte
  %place = load i32, ptr %p.x, align 4
  %place.next = add i32 %place, 1
  store i32 %place.next, ptr %p.x, align 4
  %place.wide = zext i32 %place to i64
  %p.to = getelementptr i64, ptr %to, i64 %place.wide
  store i64 %x, ptr %p.to, align 8
  %m.next = add i64 %m, 1
  %moving = icmp slt i64 %m.next, %n
  br i1 %moving, label %move, label %pass.end
pass.end:
  %from.next = phi ptr [%from, %pass], [%to, %move]
  %to.next = phi ptr [%to, %pass], [%from, %move]
  %number.next = add i64 %number, 1
  %passing = icmp slt i64 %number.next, 4
  br i1 %passing, label %pass, label %finish
finish:
  %home = icmp eq ptr %from.next, %a
  br i1 %home, label %done, label %copy
copy:
  %bytes = mul i64 %n, 8
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %a, ptr align 8 %from.next, i64 %bytes, i1 false)
  br label %done
done:
  ret void
}
