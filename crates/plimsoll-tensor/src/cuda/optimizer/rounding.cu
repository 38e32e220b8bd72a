
// Stochastic rounding to bfloat16: adds 16 random bits below the last bit that is kept. Other types are rounded to nearest.

INLINE void put(bf16* p, float x, u32 random) {
    u32 bits = __float_as_uint(x), size = bits & 0x7fffffffu;
    bool is_finite = size < 0x7f800000u;
    p->bits = (u16)((is_finite ? bits + (random & 0xffffu) : bits) >> 16);
    if (size > 0x7f800000u) p->bits |= 0x40;
}
template <class To, class From> INLINE void put(To* p, From x, u32) { store(p, x); }

// The random bits of an element in one step, for the parameter (the 0th tensor) and its state. A word has bits for two tensors.
struct Bits {
    u64 seed, stream;
    INLINE u32 of(i64 i, int nth) const { return random_word((u64)i, stream + nth / 2, seed) >> (nth & 1 ? 16 : 0); }
};
