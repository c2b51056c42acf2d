#include "based/kernels/common/cpu/isa.h"

#include <atomic>

namespace based::kernels::cpu {
namespace {

#if defined(__x86_64__)
Isa detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) return Isa::portable;
#if defined(BASED_FEW_ISAS)
  return Isa::avx2;
#endif
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512dq"))
    return Isa::avx2;
  return __builtin_cpu_supports("avx512bf16") ? Isa::avx512bf16 : Isa::avx512;
}

bool detect_amx() {
  if (detect() < Isa::avx512bf16) return false;
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return (edx >> 22 & 1) != 0 && (edx >> 24 & 1) != 0;  // amx-bf16, amx-tile
}
#else
Isa detect() { return Isa::portable; }
bool detect_amx() { return false; }
#endif

std::atomic<Isa>& current() {
  static std::atomic<Isa> value{best_isa()};
  return value;
}

}  // namespace

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

Isa isa() { return current().load(std::memory_order_relaxed); }

bool set_isa(Isa wanted) {
  if (wanted > best_isa()) return false;
  current().store(wanted);
  return true;
}

const char* isa_name(Isa which) {
  switch (which) {
    case Isa::portable: return "portable";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512bf16: return "avx512bf16";
  }
  return "unknown";
}

bool machine_has_amx() {
  static const bool has_amx = detect_amx();  // every bf16 layer asks, and cpuid leaves a virtual machine
  return has_amx;
}

}  // namespace based::kernels::cpu
