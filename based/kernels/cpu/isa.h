// The instruction set that the CPU kernels run with, chosen once at run time.
// A file foo.simd.cpp is compiled once an instruction set and puts its functions into namespace cpu::BASED_ISA; foo.cpp calls
// BASED_DISPATCH(function, arguments…), which calls the one of the current instruction set.
#pragma once

namespace based::kernels::cpu {

enum class Isa { portable, avx2, avx512, avx512bf16, amx };  // each includes the ones before it

// The best that this machine (and its operating system) can run.
Isa best_isa();
// The one in use: the best, unless set_isa() asked for a lower one (tests and benchmarks do).
Isa isa();
// False, and nothing changes, where the machine cannot run it.
bool set_isa(Isa);
const char* isa_name(Isa);

}  // namespace based::kernels::cpu

// Declares `signature` (a function type's name and parameters) in every instruction set's namespace:
//   BASED_DECLARE_SIMD(void, add, (const float* a, const float* b, float* y, int64_t n))
#if defined(__x86_64__)
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
  }                                                  \
  namespace amx {                                    \
  result name parameters;                            \
  }
#define BASED_DISPATCH(name, ...)                                                                               \
  [&] {                                                                                                         \
    switch (::based::kernels::cpu::isa()) {                                                                     \
      case ::based::kernels::cpu::Isa::amx: return ::based::kernels::cpu::amx::name(__VA_ARGS__);               \
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
