#include "based/kernels/selective_scan.h"

#include <algorithm>

#include "based/kernels/cpu/isa.h"
#include "based/kernels/cpu/parallel.h"
#include "based/kernels/cpu/selective_scan_simd.h"

namespace based::kernels::cpu {
namespace {

constexpr int64_t cache_line = 64;

Status check(const SelectiveScan& p) {
  if (p.tokens < 0 || p.rows < 0 || p.channels < 0) return {"selective_scan: sizes must not be negative"};
  if (p.state_size < 1 || p.state_size > kSelectiveScanStates) return {"selective_scan: state_size must be 1..256"};
  if (p.groups < 1 || p.channels % p.groups != 0) return {"selective_scan: channels must be a multiple of groups"};
  if (p.channels > 0 && !p.A_log) return {"selective_scan: A_log must be given"};
  if (p.tokens > 0 && p.channels > 0 && (!p.x || !p.dt || !p.B || !p.C)) return {"selective_scan: x, dt, B and C must be given"};
  return {};
}

Status check_rows(const SelectiveScan& p) {
  if (p.rows == 0) return {};
  if (!p.row_start) return {"selective_scan: row_start must be given"};
  for (int64_t row = 0; row < p.rows; ++row)
    if (p.row_start[row + 1] < p.row_start[row]) return {"selective_scan: row_start must not decrease"};
  if (p.row_start[0] != 0 || p.row_start[p.rows] != p.tokens) return {"selective_scan: row_start must go from 0 to the tokens"};
  return {};
}

// The work as parts, blocks of channels times stretches of rows, the same for any number of threads.
class Parts {
 public:
  // A stretch has at least this many tokens, since a part's first token costs about as much as the second one again.
  static constexpr int64_t tokens_of_a_stretch = 64;

  Parts(const SelectiveScan& p, bool step, int64_t most_stretches) : p_(p), step_(step), of_group_(p.channels / p.groups) {
    blocks_of_group_ = (of_group_ + scan_block - 1) / scan_block;
    stretches_ = std::clamp<int64_t>(p.tokens / tokens_of_a_stretch, 1, std::max<int64_t>(1, std::min(p.rows, most_stretches)));
  }
  int64_t blocks() const { return p_.groups * blocks_of_group_; }
  int64_t stretches() const { return stretches_; }
  int64_t count() const { return blocks() * stretches_; }
  ScanPart operator[](int64_t item) const {
    const int64_t number = item / stretches_, stretch = item % stretches_, group = number / blocks_of_group_;
    const int64_t within = number % blocks_of_group_ * scan_block;
    return {{group, group * of_group_ + within, std::min(scan_block, of_group_ - within), number},
            first_row(stretch),
            first_row(stretch + 1),
            stretch};
  }

 private:
  int64_t first_row(int64_t stretch) const {
    if (stretch == 0 || stretch == stretches_) return stretch == 0 ? 0 : p_.rows;
    const int64_t token = p_.tokens * stretch / stretches_;
    return step_ ? token : std::lower_bound(p_.row_start, p_.row_start + p_.rows, token) - p_.row_start;
  }

  const SelectiveScan& p_;
  bool step_;
  int64_t of_group_, blocks_of_group_ = 0, stretches_ = 1;
};

void run(const SelectiveScan& p, bool step) {
  // Starting a second thread costs a few microseconds, in which one thread takes about this many states one token further.
  constexpr int64_t worth_a_thread = 16 * 1024;
  if (p.channels == 0 || p.rows == 0) return;
  const Parts parts(p, step, 64);
  if (p.tokens * p.channels * p.state_size <= worth_a_thread) {
    for (int64_t item = 0; item < parts.count(); ++item) BASED_DISPATCH(selective_scan_part, p, parts[item], step);
    return;
  }
  parallel_items(parts.count(), [&](int64_t item, int64_t) { BASED_DISPATCH(selective_scan_part, p, parts[item], step); });
}

// Of a backward. More stretches would be more sums to keep.
Parts parts_of(const SelectiveScanBackward& b) { return {b.forward, false, 8}; }

// Where the sums lie in the scratch, in floats, each part in lines of its own.
struct Layout {
  static int64_t lines(int64_t floats) { return (floats + 15) / 16 * 16; }

  int64_t tokens, channels, threads, thread;
  explicit Layout(const SelectiveScanBackward& b, const Parts& parts) {
    const SelectiveScan& p = b.forward;
    tokens = lines(parts.blocks() * 2 * p.tokens * p.state_size);
    channels = lines(parts.stretches() * p.channels * (p.state_size + 2));
    threads = std::min<int64_t>(parts.count(), max_threads());
    thread = lines(scan_thread_floats(p.state_size));
  }
  int64_t bytes() const { return (tokens + channels + threads * thread) * int64_t{sizeof(float)} + cache_line; }
};

// The stretches' gradients of A_log, D and dt_bias, added up for channels begin .. end.
void sum_channels(const SelectiveScanBackward& b, const float* sums, int64_t stretches, int64_t begin, int64_t end) {
  const int64_t size = b.forward.state_size, each = b.forward.channels * (size + 2);
  for (int64_t channel = begin; channel < end; ++channel) {
    const float* first = sums + channel * (size + 2);
    for (int64_t s = 0; s < size + 2; ++s) {
      float sum = 0;
      for (int64_t stretch = 0; stretch < stretches; ++stretch) sum += first[stretch * each + s];
      if (s < size) b.grad_A_log[channel * size + s] = sum;
      if (s == size && b.grad_D) b.grad_D[channel] = sum;
      if (s > size && b.grad_dt_bias) b.grad_dt_bias[channel] = sum;
    }
  }
}

}  // namespace

Status selective_scan_forward(const SelectiveScan& p) {
  if (Status status = check(p); !status.ok()) return status;
  if (Status status = check_rows(p); !status.ok()) return status;
  if (p.tokens > 0 && p.channels > 0 && !p.y) return {"selective_scan: y must be given"};
  run(p, false);
  return {};
}

Status selective_scan_step(const SelectiveScan& p) {
  if (Status status = check(p); !status.ok()) return status;
  if (p.tokens != p.rows) return {"selective_scan_step: a step has one token a row"};
  if (p.rows > 0 && p.channels > 0 && (!p.y || !p.state)) return {"selective_scan_step: y and state must be given"};
  run(p, true);
  return {};
}

int64_t selective_scan_backward_scratch(const SelectiveScanBackward& b) {
  if (!check(b.forward).ok() || !check_rows(b.forward).ok()) return 0;
  return Layout(b, parts_of(b)).bytes();
}

Status selective_scan_backward(const SelectiveScanBackward& b, void* scratch) {
  const SelectiveScan& p = b.forward;
  if (Status status = check(p); !status.ok()) return status;
  if (Status status = check_rows(p); !status.ok()) return status;
  const bool has_numbers = p.tokens > 0 && p.channels > 0;
  if (p.channels > 0 && !b.grad_A_log) return {"selective_scan_backward: grad_A_log must be given"};
  if (p.tokens > 0 && (!b.grad_B || !b.grad_C)) return {"selective_scan_backward: grad_B and grad_C must be given"};
  if (has_numbers && (!p.chunk_states || !b.grad_y || !b.grad_x || !b.grad_dt))
    return {"selective_scan_backward: chunk_states, grad_y, grad_x and grad_dt must be given"};
  if (has_numbers && (p.z != nullptr) != (b.grad_z != nullptr)) return {"selective_scan_backward: grad_z must be given exactly where z is"};
  const Parts parts = parts_of(b);
  const Layout layout(b, parts);
  auto* tokens = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + cache_line - 1) / cache_line * cache_line);
  float *channels = tokens + layout.tokens, *threads = channels + layout.channels;
  parallel_items(parts.count(), [&](int64_t item, int64_t thread) {
    BASED_DISPATCH(selective_scan_backward_part, b, parts[item], ScanSums{tokens, channels, threads + thread * layout.thread});
  });
  parallel_for(p.tokens, 256, [&](int64_t begin, int64_t end) { BASED_DISPATCH(selective_scan_sum_tokens, b, tokens, begin, end); });
  parallel_for(p.channels, 256, [&](int64_t begin, int64_t end) { sum_channels(b, channels, parts.stretches(), begin, end); });
  return {};
}

}  // namespace based::kernels::cpu
