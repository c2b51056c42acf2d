#include "based/kernels/scan/cpu/block.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

template <class T>
class Forward {
 public:
  Forward(const SelectiveScan& p, const ScanBlock& block) : p_(p), channels_(p, block, rate_, std::integral_constant<int64_t, pitch>()) {}

  void row(int64_t r, int64_t token, int64_t length) {
    const int64_t size = p_.state_size, slot = p_.slot ? p_.slot[r] : r;
    float* state = p_.state ? p_.state + (slot * p_.channels + channels_.block.first) * size : nullptr;
    if (state)
      to_columns<pitch>(state, channels_.block.n, size, h_);
    else
      for (int64_t s = 0; s < size; ++s) std::fill_n(h_ + s * pitch, scan_block, 0.0f);
    for (int64_t t = 0; t < length; ++t) {
      if (p_.chunk_states && t % kSelectiveScanChunk == 0)
        store_chunk_state(selective_scan_first_chunk(r, token) + t / kSelectiveScanChunk);
      advance(token + t);
    }
    if (state) to_rows<pitch>(h_, channels_.block.n, size, state);
  }

 private:
  static constexpr int64_t pitch = 2 * scan_block;

  void store_chunk_state(int64_t chunk) const {
    float* chunk_state = p_.chunk_states + chunk * p_.state_size * p_.channels + channels_.block.first;
    for (int64_t s = 0; s < p_.state_size; ++s) std::copy_n(h_ + s * pitch, channels_.block.n, chunk_state + s * p_.channels);
  }

  void advance(int64_t token) {
    const int64_t size = p_.state_size;
    read_group<T>(p_.B, token, p_.b_stride, channels_.block.group, size, b_);
    read_group<T>(p_.C, token, p_.c_stride, channels_.block.group, size, c_);
    for (int64_t c = 0; c < channels_.block.n; c += lanes) {
      const int n = channels_.used(c);
      const int64_t channel = channels_.block.first + c;
      const Vec x = token_at<T>(p_.x, token, p_.x_stride, channel, n);
      Vec step = token_at<T>(p_.dt, token, p_.dt_stride, channel, n) + load(channels_.bias + c);
      if (p_.softplus) step = softplus(step);
      const Vec in = step * x;
      Vec sum = load(channels_.skip + c) * x;
      const float* rate = rate_ + c;
      float* h = h_ + c;
      for (int64_t s = 0; s < size; ++s) {
        const Vec decay = exp2(step * load(rate + s * pitch));
        const Vec now = fma(decay, load(h + s * pitch), in * b_[s]);
        store(h + s * pitch, now);
        sum = fma(broadcast(c_[s]), now, sum);
      }
      if (p_.z) {
        const Vec z = token_at<T>(p_.z, token, p_.z_stride, channel, n);
        sum *= z * sigmoid(z);
      }
      store_some(static_cast<T*>(p_.y) + token * p_.y_stride + channel, sum, n);
    }
  }

  alignas(64) float rate_[kSelectiveScanStates * pitch], *h_ = rate_ + scan_block;
  alignas(64) float b_[kSelectiveScanStates], c_[kSelectiveScanStates];
  const SelectiveScan& p_;
  const ScanChannels<T> channels_;
};

template <class T>
void run(const SelectiveScan& p, const ScanPart& part, bool step) {
  Forward<T> forward(p, part.block);
  for (int64_t row = part.row_begin; row < part.row_end; ++row)
    step ? forward.row(row, row, 1) : forward.row(row, p.row_start[row], p.row_start[row + 1] - p.row_start[row]);
}

}  // namespace

void selective_scan_part(const SelectiveScan& p, const ScanPart& part, bool step) {
  p.dtype == DType::bf16 ? run<bf16>(p, part, step) : run<float>(p, part, step);
}

}  // namespace based::kernels::cpu::BASED_ISA
