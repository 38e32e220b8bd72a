
// Products in TF32 on tensor cores, and asynchronous copies to shared memory, for compute capability 8.0 and newer.

INLINE u32 rounded(float x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

// sums += a b, with a of 16 x 8 and b of 8 x 8. With g = lane / 4 and t = lane % 4, a thread holds rows g and g + 8 of a in
// column t, then in column t + 4; rows t and t + 4 of b in column g; and columns 2 t and 2 t + 1 of the sums in row g, then in
// row g + 8.
INLINE void multiply(float* sums, const u32* a, const u32* b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Copies SIDE (one or four) contiguous numbers, or writes zeros for positions outside; `from` is then not read.
template <int SIDE> INLINE void copy_later(float* to, const float* from, bool there) {
    u32 place = (u32)__cvta_generic_to_shared(to), bytes = there ? SIDE * 4 : 0;
    if (SIDE == 4) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(place), "l"(from), "r"(bytes) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(place), "l"(from), "r"(bytes) : "memory");
}
// Ends a group of copies.
INLINE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of copies except the last LEFT groups.
template <int LEFT> INLINE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory"); }
