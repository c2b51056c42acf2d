// The backward processes a row's chunks from the last to the first. For each vector of channels, it recomputes the states and decays of the
// chunk from the kept state before it. Then it goes through the tokens backwards with the gradient of the state.
#include "based/kernels/scan/cpu/block.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

constexpr int64_t chunk = kSelectiveScanChunk;

// Tokens first .. first + n of a chunk. `start` [state_size, channels] is the state before the chunk.
struct ChunkTokens {
  int64_t first, n;
  const float* start;
};

template <class T>
class Backward {
 public:
  Backward(const SelectiveScanBackward& b, const ScanPart& part, const ScanSums& sums)
      : b_(b),
        p_(b.forward),
        part_(part),
        block_(part.block),
        channels_(b.forward, part.block, rate_, std::integral_constant<int64_t, pitch>()),
        size_(b.forward.state_size) {
    float* memory = sums.thread;
    const auto allocate = [&](int64_t n) { return std::exchange(memory, memory + n); };
    decay_ = allocate(2 * chunk * size_ * 16), h_ = decay_ + lanes, b_rows_ = allocate(chunk * size_), c_rows_ = allocate(chunk * size_);
    grad_b_ = sums.token + block_.number * 2 * p_.tokens * size_, grad_c_ = grad_b_ + p_.tokens * size_;
    channel_ = sums.channel + (part.row_part * p_.channels + block_.first) * (size_ + 2);
    clear(grad_rate_);
  }

  void row(int64_t r) {
    const int64_t token = p_.row_start[r], length = p_.row_start[r + 1] - token, state = (r * p_.channels + block_.first) * size_;
    if (b_.grad_state)
      to_columns<pitch>(b_.grad_state + state, block_.n, size_, carry_);
    else
      clear(carry_);
    for (int64_t k = (length + chunk - 1) / chunk - 1; k >= 0; --k) {
      const float* start = p_.chunk_states + (selective_scan_first_chunk(r, token) + k) * size_ * p_.channels + block_.first;
      const ChunkTokens tokens{token + k * chunk, std::min(chunk, length - k * chunk), start};
      for (int64_t t = 0; t < tokens.n; ++t) {
        read_group<T>(p_.B, tokens.first + t, p_.b_stride, block_.group, size_, b_rows_ + t * size_);
        read_group<T>(p_.C, tokens.first + t, p_.c_stride, block_.group, size_, c_rows_ + t * size_);
      }
      for (int64_t c = 0; c < block_.n; c += lanes) {
        recompute(tokens, c);
        for (int64_t t = tokens.n - 1; t >= 0; --t) backward_token(tokens, t, c);
      }
    }
    if (b_.grad_initial_state) to_rows<pitch>(carry_, block_.n, size_, b_.grad_initial_state + state);
  }

  // Stores the gradients of A_log, D and dt_bias, channel by channel.
  void write() {
    for (int64_t s = 0; s < size_; ++s)
      for (int64_t c = 0; c < scan_block; c += lanes) {
        float* sum = grad_rate_ + s * pitch + c;
        store(sum, load(sum) * load(rate_ + s * pitch + c) * ln_2);
      }
    for (int64_t c = 0; c < block_.n; ++c) {
      float* channel = channel_ + c * (size_ + 2);
      for (int64_t s = 0; s < size_; ++s) channel[s] = grad_rate_[s * pitch + c];
      channel[size_] = grad_skip_[c], channel[size_ + 1] = grad_bias_[c];
    }
  }

 private:
  static constexpr int64_t pitch = 4 * scan_block;

  void clear(float* columns) const {
    for (int64_t s = 0; s < size_; ++s) std::fill_n(columns + s * pitch, scan_block, 0.0f);
  }

  // Values of a token's forward that its backward needs, for one vector of channels.
  struct TokenValues {
    Vec x, raw, step, grad;  // raw: the step before softplus; grad: gradient of C·h + D x
  };

  // Recomputes the forward of a vector of channels.
  void recompute(const ChunkTokens& tokens, int64_t c) {
    const int n = channels_.used(c);
    const int64_t channel = block_.first + c;
    for (int64_t t = 0; t < tokens.n; ++t) {
      const int64_t token = tokens.first + t;
      const Vec x = token_at<T>(p_.x, token, p_.x_stride, channel, n);
      const Vec raw = token_at<T>(p_.dt, token, p_.dt_stride, channel, n) + load(channels_.bias + c);
      const Vec step = p_.softplus ? softplus(raw) : raw, in = step * x;
      Vec sum = load(channels_.skip + c) * x;
      const float *b = b_rows_ + t * size_, *readout = c_rows_ + t * size_;
      float *decays = decay_ + t * size_ * 2 * lanes, *states = h_ + t * size_ * 2 * lanes;
      for (int64_t s = 0; s < size_; ++s) {
        const Vec before = t > 0 ? load(states + (s - size_) * 2 * lanes) : load_some(tokens.start + s * p_.channels + c, n);
        const Vec decay = exp2(step * load(rate_ + s * pitch + c)), now = fma(decay, before, in * b[s]);
        store(decays + s * 2 * lanes, decay);
        store(states + s * 2 * lanes, now);
        sum = fma(broadcast(readout[s]), now, sum);
      }
      Vec grad = token_at<T>(b_.grad_y, token, p_.channels, channel, n);
      if (p_.z) {
        const Vec z = token_at<T>(p_.z, token, p_.z_stride, channel, n), gate = sigmoid(z);
        store_some(static_cast<T*>(b_.grad_z) + token * b_.grad_z_stride + channel, grad * sum * silu_slope(z, gate), n);
        grad *= z * gate;
      }
      values_[t] = {x, raw, step, grad};
    }
  }

  // Sums each vector of a tile over its channels, and adds the results to the sums of n adjacent state elements.
  static void add_over_channels(Vec (&tile)[lanes], int n, bool first, float* sums) {
    transpose(tile);
    for (int width = lanes / 2; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) tile[i] += tile[i + width];
    store_some(sums, first ? tile[0] : load_some(sums, n) + tile[0], n);
  }

  void backward_token(const ChunkTokens& tokens, int64_t t, int64_t c) {
    const int n = channels_.used(c);
    const int64_t token = tokens.first + t, output = token * p_.channels + block_.first + c;
    const auto [x, raw, step, grad] = values_[t];
    const float *b = b_rows_ + t * size_, *readout = c_rows_ + t * size_;
    const float *decays = decay_ + t * size_ * 2 * lanes, *states = h_ + t * size_ * 2 * lanes;
    const Vec in = step * x;
    Vec grad_in{}, grad_decay{};
    for (int64_t s0 = 0; s0 < size_; s0 += lanes) {
      const int columns = static_cast<int>(std::min<int64_t>(lanes, size_ - s0));
      Vec grad_b[lanes], grad_c[lanes];
      for (int i = 0; i < lanes; ++i) {
        if (i >= columns) {
          grad_b[i] = grad_c[i] = Vec{};
          continue;
        }
        const int64_t s = s0 + i;
        const Vec before = t > 0 ? load(states + (s - size_) * 2 * lanes) : load_some(tokens.start + s * p_.channels + c, n);
        float *carry = carry_ + s * pitch + c, *grad_rate = grad_rate_ + s * pitch + c;
        const Vec grad_h = fma(broadcast(readout[s]), grad, load(carry)), passed = grad_h * load(decays + s * 2 * lanes),
                  slope = passed * before;
        store(carry, passed);
        grad_c[i] = grad * load(states + s * 2 * lanes);
        grad_b[i] = grad_h * in;
        grad_in = fma(grad_h, broadcast(b[s]), grad_in);
        grad_decay = fma(slope, load(rate_ + s * pitch + c), grad_decay);
        store(grad_rate, fma(slope, step, load(grad_rate)));
      }
      add_over_channels(grad_b, columns, c == 0, grad_b_ + token * size_ + s0);
      add_over_channels(grad_c, columns, c == 0, grad_c_ + token * size_ + s0);
    }
    Vec grad_step = fma(grad_in, x, grad_decay * ln_2);
    if (p_.softplus) grad_step *= sigmoid(raw);
    store(grad_skip_ + c, fma(grad, x, load(grad_skip_ + c)));
    store(grad_bias_ + c, load(grad_bias_ + c) + grad_step);
    store_some(static_cast<T*>(b_.grad_x) + output, fma(grad_in, step, load(channels_.skip + c) * grad), n);
    store_some(static_cast<T*>(b_.grad_dt) + output, grad_step, n);
  }

  alignas(64) float rate_[kSelectiveScanStates * pitch], *carry_ = rate_ + scan_block, *grad_rate_ = carry_ + scan_block;
  const SelectiveScanBackward& b_;
  const SelectiveScan& p_;
  const ScanPart& part_;
  const ScanBlock& block_;
  const ScanChannels<T> channels_;
  const int64_t size_;
  float *decay_, *h_, *b_rows_, *c_rows_, *grad_b_, *grad_c_, *channel_;
  TokenValues values_[chunk];
  alignas(64) float grad_skip_[scan_block] = {}, grad_bias_[scan_block] = {};
};

template <class T>
void run(const SelectiveScanBackward& b, const ScanPart& part, const ScanSums& sums) {
  Backward<T> backward(b, part, sums);
  for (int64_t row = part.row_begin; row < part.row_end; ++row) backward.row(row);
  backward.write();
}

template <class T>
void sum_tokens(const SelectiveScanBackward& b, const float* sums, int64_t begin, int64_t end) {
  const SelectiveScan& p = b.forward;
  const int64_t size = p.state_size, blocks = (p.channels / p.groups + scan_block - 1) / scan_block;
  for (int operand = 0; operand < 2; ++operand)
    for (int64_t token = begin; token < end; ++token)
      for (int64_t group = 0; group < p.groups; ++group) {
        T* gradient = static_cast<T*>(operand == 0 ? b.grad_B : b.grad_C) + (token * p.groups + group) * size;
        for (int64_t s = 0; s < size; s += lanes) {
          const int n = static_cast<int>(std::min<int64_t>(lanes, size - s));
          Vec sum{};
          for (int64_t block = group * blocks; block < (group + 1) * blocks; ++block)
            sum += load_some(sums + ((2 * block + operand) * p.tokens + token) * size + s, n);
          store_some(gradient + s, sum, n);
        }
      }
}

}  // namespace

void selective_scan_backward_part(const SelectiveScanBackward& b, const ScanPart& part, const ScanSums& sums) {
  b.forward.dtype == DType::bf16 ? run<bf16>(b, part, sums) : run<float>(b, part, sums);
}

void selective_scan_sum_tokens(const SelectiveScanBackward& b, const float* sums, int64_t begin, int64_t end) {
  b.forward.dtype == DType::bf16 ? sum_tokens<bf16>(b, sums, begin, end) : sum_tokens<float>(b, sums, begin, end);
}

}  // namespace based::kernels::cpu::BASED_ISA
