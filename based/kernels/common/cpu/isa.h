// The instruction set that the CPU kernels run with, chosen once at run time.
// A file foo.simd.cpp is compiled once for each instruction set and defines its functions in namespace cpu::BASED_ISA; foo.cpp calls
// BASED_DISPATCH(function, arguments…), which calls the function of the current instruction set.
#pragma once

namespace based::kernels::cpu {

enum class Isa { portable, avx2, avx512, avx512bf16 };  // each includes the preceding ones

// The best one that this machine and its operating system support.
Isa best_isa();
// The one in use: the best one, unless set_isa() has selected a lower one (as tests and benchmarks do).
Isa isa();
// Returns false and changes nothing where the machine does not support it.
bool set_isa(Isa);
const char* isa_name(Isa);

// Whether the machine multiplies bf16 matrices by AMX tiles. No kernel here does; LibTorch's library of products does.
bool machine_has_amx();

}  // namespace based::kernels::cpu

// Declares a function in the namespace of every instruction set:
//   BASED_DECLARE_SIMD(void, add, (const float* a, const float* b, float* y, int64_t n))
#if defined(__x86_64__) && defined(BASED_FEW_ISAS)
#define BASED_DECLARE_SIMD(result, name, parameters) \
  namespace portable {                               \
  result name parameters;                            \
  }                                                  \
  namespace avx2 {                                   \
  result name parameters;                            \
  }
#define BASED_DISPATCH(name, ...)                                                                                            \
  (::based::kernels::cpu::isa() == ::based::kernels::cpu::Isa::portable ? ::based::kernels::cpu::portable::name(__VA_ARGS__) \
                                                                        : ::based::kernels::cpu::avx2::name(__VA_ARGS__))
#elif defined(__x86_64__)
#define BASED_DECLARE_SIMD(result, name, parameters) \
  namespace portable {                               \
  result name parameters;                            \
  }                                                  \
  namespace avx2 {                                   \
  result name parameters;                            \
  }                                                  \
  namespace avx512 {                                 \
  result name parameters;                            \
  }                                                  \
  namespace avx512bf16 {                             \
  result name parameters;                            \
  }
#define BASED_DISPATCH(name, ...)                                                                               \
  [&] {                                                                                                         \
    switch (::based::kernels::cpu::isa()) {                                                                     \
      case ::based::kernels::cpu::Isa::avx512bf16: return ::based::kernels::cpu::avx512bf16::name(__VA_ARGS__); \
      case ::based::kernels::cpu::Isa::avx512: return ::based::kernels::cpu::avx512::name(__VA_ARGS__);         \
      case ::based::kernels::cpu::Isa::avx2: return ::based::kernels::cpu::avx2::name(__VA_ARGS__);             \
      default: return ::based::kernels::cpu::portable::name(__VA_ARGS__);                                       \
    }                                                                                                           \
  }()
#else
#define BASED_DECLARE_SIMD(result, name, parameters) \
  namespace portable {                               \
  result name parameters;                            \
  }
#define BASED_DISPATCH(name, ...) ::based::kernels::cpu::portable::name(__VA_ARGS__)
#endif
