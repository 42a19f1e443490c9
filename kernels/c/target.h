/* Compile the functions between FF_TARGET and FF_TARGET_END for an instruction set. Include headers of intrinsics
   before FF_TARGET. */
#ifndef FASTFLOW_TARGET_H
#define FASTFLOW_TARGET_H

#define FF_PRAGMA(x) _Pragma(#x)
#if defined(__clang__)
#define FF_TARGET(features) FF_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define FF_TARGET_END FF_PRAGMA(clang attribute pop)
#else
#define FF_TARGET(features) FF_PRAGMA(GCC target(features))
#define FF_TARGET_END
#endif

#define FF_AVX2_FEATURES "avx2,fma"
#if defined(__clang__)
#define FF_AVX512_FEATURES "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#else
#define FF_AVX512_FEATURES "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"
#endif

#endif
