// Closes what simd.h opened. No include guard: once per *_simd.cc file, last.
#pragma GCC pop_options
#undef WEFT_INLINE
