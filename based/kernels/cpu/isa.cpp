#include "based/kernels/cpu/isa.h"

#include <atomic>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace based::kernels::cpu {
namespace {

#if defined(__x86_64__)
// Linux hands out the AMX tile registers only to processes that ask (arch_prctl ARCH_REQ_XCOMP_PERM, feature 18).
bool request_amx() {
#if defined(__linux__)
  constexpr long arch_req_xcomp_perm = 0x1023, xfeature_xtiledata = 18;
  return syscall(SYS_arch_prctl, arch_req_xcomp_perm, xfeature_xtiledata) == 0;
#else
  return false;
#endif
}

Isa detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) return Isa::portable;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512dq"))
    return Isa::avx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::avx512;
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  const bool amx = (edx >> 22 & 1) && (edx >> 24 & 1);  // amx-bf16, amx-tile
  return amx && request_amx() ? Isa::amx : Isa::avx512bf16;
}
#else
Isa detect() { return Isa::portable; }
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
    case Isa::amx: return "amx";
  }
  return "unknown";
}

}  // namespace based::kernels::cpu
