// The properties of a GPU that determine the choice of kernels. They are passed as values, so that a step can be planned for a GPU that is
// not present.
#pragma once
#include "based/kernels/common/kernel.h"

namespace based::kernels {

struct Gpu {
  int multiprocessors = 0;
  bool runs_hopper_code = false;  // see device_code.h
  int shared_bytes = 0;           // shared memory of a multiprocessor
  int reserved_shared_bytes = 0;  // part of it that the system reserves for each block
  int block_shared_bytes = 0;     // the most that a block may have
};
constexpr Gpu kH200{132, true, 233472, 1024, 232448};

namespace cuda {
Gpu this_gpu();  // the current device
}  // namespace cuda

inline bool aligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }
constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

}  // namespace based::kernels
