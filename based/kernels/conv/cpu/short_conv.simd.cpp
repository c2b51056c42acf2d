// The inputs of a row are numbered from the start of its history: input h is history[h] for h < taps − 1, else token h − (taps − 1) of the
// row.
#include <algorithm>

#include "based/kernels/common/cpu/silu.h"
#include "based/kernels/conv/cpu/short_conv_simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

constexpr int32_t max_taps = short_conv_max_taps;

// Transpose taps or history of n channels from [n, columns] to [columns][width], where channels are lanes, and back. With a constant number
// of columns the compiler shuffles whole vectors.
template <int Columns, class T>
void split_columns(const T* in, int64_t n, float* out, int64_t width) {
  for (int64_t c = 0; c < n; ++c)
    for (int j = 0; j < Columns; ++j) out[j * width + c] = to_float(in[c * Columns + j]);
}
template <class T>
void split(const T* in, int64_t columns, int64_t n, float* out, int64_t width) {
  switch (columns) {
    case 1: return split_columns<1>(in, n, out, width);
    case 2: return split_columns<2>(in, n, out, width);
    case 3: return split_columns<3>(in, n, out, width);
    case 4: return split_columns<4>(in, n, out, width);
  }
  for (int64_t c = 0; c < n; ++c)
    for (int64_t j = 0; j < columns; ++j) out[j * width + c] = to_float(in[c * columns + j]);
}
template <int Columns>
void join_columns(const float* in, int64_t width, int64_t n, float* out) {
  for (int64_t c = 0; c < n; ++c)
    for (int j = 0; j < Columns; ++j) out[c * Columns + j] = in[j * width + c];
}
void join(const float* in, int64_t width, int64_t columns, int64_t n, float* out) {
  switch (columns) {
    case 1: return join_columns<1>(in, width, n, out);
    case 2: return join_columns<2>(in, width, n, out);
    case 3: return join_columns<3>(in, width, n, out);
    case 4: return join_columns<4>(in, width, n, out);
  }
  for (int64_t c = 0; c < n; ++c)
    for (int64_t j = 0; j < columns; ++j) out[c * columns + j] = in[j * width + c];
}

constexpr int64_t block = short_conv_block;

// The filter of a block of channels. Entries of channels past n are 0.
template <class T>
struct Filter {
  int64_t first = 0, n = 0;
  alignas(64) float weight[max_taps * block], bias[block];

  void read(const ShortConv& p, int64_t channel) {
    first = channel, n = std::min(block, p.channels - channel);
    if (n < block) std::fill_n(weight, p.taps * block, 0.0f);
    split(static_cast<const T*>(p.weight) + channel * p.taps, p.taps, n, weight, block);
    std::fill_n(bias, block, 0.0f);
    if (p.bias) split(static_cast<const T*>(p.bias) + channel, 1, n, bias, block);
  }
};

// Tokens first .. first + n of a row that starts at `token` and has `length` tokens.
struct Piece {
  int64_t row, token, length, first, n;
};

template <class T>
void outputs(const ShortConv& p, const Filter<T>& filter, const Piece& piece, const float* history) {
  const int64_t kept = p.taps - 1;
  const T* x = static_cast<const T*>(p.x) + piece.token * p.x_stride + filter.first;
  const T* gate = p.gate ? static_cast<const T*>(p.gate) + piece.token * p.gate_stride + filter.first : nullptr;
  T* y = static_cast<T*>(p.y) + piece.token * p.y_stride + filter.first;
  for (int64_t t = piece.first; t < piece.first + piece.n; ++t) {
    const int64_t old = std::max<int64_t>(0, kept - t);
    for (int64_t c = 0; c < filter.n; c += lanes) {
      const int n = static_cast<int>(std::min<int64_t>(lanes, filter.n - c));
      Vec sum = load(filter.bias + c);
      for (int64_t j = 0; j < old; ++j) sum = fma(load(history + (t + j) * block + c), load(filter.weight + j * block + c), sum);
      for (int64_t j = old; j <= kept; ++j)
        sum = fma(load_some(x + (t + j - kept) * p.x_stride + c, n), load(filter.weight + j * block + c), sum);
      if (p.silu) sum *= sigmoid(sum);
      if (gate) sum *= load_some(gate + t * p.gate_stride + c, n);
      store_some(y + t * p.y_stride + c, sum, n);
    }
  }
}

// The first piece of a row reads the state and writes the new state: the row's last inputs. If the row is short, some of them come from the
// old state.
template <class T>
void run_piece(const ShortConv& p, const Filter<T>& filter, const Piece& piece) {
  const int64_t kept = p.taps - 1, slot = p.slot ? p.slot[piece.row] : piece.row;
  if (piece.first > 0) return outputs(p, filter, piece, nullptr);  // starts more than taps − 1 tokens into the row, so it needs no history
  alignas(64) float history[max_taps * block];
  float* state = p.state ? p.state + (slot * p.channels + filter.first) * kept : nullptr;
  if (!state || filter.n < block) std::fill_n(history, kept * block, 0.0f);
  if (state) split(state, kept, filter.n, history, block);
  outputs(p, filter, piece, history);
  if (!state) return;
  const T* end = static_cast<const T*>(p.x) + (piece.token + piece.length) * p.x_stride + filter.first;
  for (int64_t h = 0; h < kept; ++h)
    for (int64_t c = 0; c < filter.n; c += lanes) {
      const int n = static_cast<int>(std::min<int64_t>(lanes, filter.n - c));
      const int64_t before = h + piece.length;  // the history entry that moves to entry h
      store(history + h * block + c, before < kept ? load(history + before * block + c) : load_some(end + (h - kept) * p.x_stride + c, n));
    }
  join(history, block, kept, filter.n, state);
}

// Processes all channels of some pieces. Their tokens span few enough memory pages to be read once per block of channels.
template <class T>
void run_pieces(const ShortConv& p, const Piece* pieces, int64_t count) {
  Filter<T> filter;
  for (int64_t channel = 0; count > 0 && channel < p.channels; channel += block) {
    filter.read(p, channel);
    for (int64_t i = 0; i < count; ++i) run_piece(p, filter, pieces[i]);
  }
}

template <class T>
void run(const ShortConv& p, bool step, int64_t begin, int64_t end) {
  Piece pieces[short_conv_piece];
  int64_t count = 0, tokens = 0, item = 0;
  for (int64_t row = 0; row < p.rows && item < end; ++row) {
    const int64_t token = step ? row : p.row_start[row], length = step ? 1 : p.row_start[row + 1] - token;
    for (int64_t first = 0; first < length && item < end; first += short_conv_piece, ++item) {
      if (item < begin) continue;
      pieces[count++] = {row, token, length, first, std::min(short_conv_piece, length - first)};
      tokens += pieces[count - 1].n;
      if (tokens < short_conv_piece) continue;
      run_pieces<T>(p, pieces, count);
      count = tokens = 0;
    }
  }
  run_pieces<T>(p, pieces, count);
}

// The backward of up to `block` channels. Token t adds to the gradients of inputs t .. t + taps − 1; then the gradient of input t is
// complete.
template <class T>
class Backward {
 public:
  Backward(const ShortConvBackward& b, int64_t channel, int64_t n)
      : b_(b), p_(b.forward), channel_(channel), n_(n), kept_(b.forward.taps - 1) {
    std::fill_n(grad_weight_, p_.taps * block, 0.0f);
    std::fill_n(weight_, p_.taps * block, 0.0f);
    split(static_cast<const T*>(p_.weight) + channel * p_.taps, p_.taps, n, weight_, block);
    if (p_.bias) split(static_cast<const T*>(p_.bias) + channel, 1, n, bias_, block);
  }

  void row(int64_t r) {
    const int64_t token = p_.row_start[r], length = p_.row_start[r + 1] - token;
    const int64_t state = (r * p_.channels + channel_) * kept_;
    std::fill_n(history_, kept_ * block, 0.0f);
    std::fill_n(pending_, p_.taps * block, 0.0f);
    if (b_.initial_state) split(b_.initial_state + state, kept_, n_, history_, block);
    int64_t oldest = 0;  // index of the oldest entry of the ring pending_
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t c = 0; c < n_; c += lanes) backward_token(token, t, oldest, c);
      oldest = oldest < kept_ ? oldest + 1 : 0;
    }
    // The last inputs are also the final state. Remaining entries of history_ become gradients of the initial state.
    if (b_.grad_state) split(b_.grad_state + state, kept_, n_, grad_state_, block);
    for (int64_t j = 0; j < kept_; ++j)
      for (int64_t c = 0; c < n_; c += lanes) {
        Vec share = load(pending(oldest, j) + c);
        if (b_.grad_state) share += load(grad_state_ + j * block + c);
        finish(token, length + j, c, share);
      }
    if (b_.grad_initial_state) join(history_, block, kept_, n_, b_.grad_initial_state + state);
  }

  void write() const {
    join(grad_weight_, block, p_.taps, n_, b_.grad_weight + channel_ * p_.taps);
    if (b_.grad_bias) std::copy_n(grad_bias_, n_, b_.grad_bias + channel_);
  }

 private:
  int used(int64_t c) const { return static_cast<int>(std::min<int64_t>(lanes, n_ - c)); }
  Vec read(const void* p, int64_t token, int64_t stride, int64_t c) const {
    return load_some(static_cast<const T*>(p) + token * stride + channel_ + c, used(c));
  }
  float* pending(int64_t oldest, int64_t j) { return pending_ + (oldest + j <= kept_ ? oldest + j : oldest + j - p_.taps) * block; }
  Vec input(int64_t token, int64_t h, int64_t c) const {
    return h < kept_ ? load(history_ + h * block + c) : read(p_.x, token + h - kept_, p_.x_stride, c);
  }

  void backward_token(int64_t token, int64_t t, int64_t oldest, int64_t c) {
    const Vec grad = convolution_gradient(token, t, c);
    store(grad_bias_ + c, load(grad_bias_ + c) + grad);
    for (int64_t j = 0; j <= kept_; ++j) {
      float *sum = grad_weight_ + j * block + c, *share = pending(oldest, j) + c;
      store(sum, fma(grad, input(token, t + j, c), load(sum)));
      store(share, fma(grad, load(weight_ + j * block + c), load(share)));
    }
    float* complete = pending(oldest, 0) + c;
    finish(token, t, c, load(complete));
    store(complete, Vec{});
  }

  // Returns the gradient of bias + Σ weight·x at token t of the row. Also stores the gradient of the gate.
  Vec convolution_gradient(int64_t token, int64_t t, int64_t c) {
    Vec sum = load(bias_ + c);
    for (int64_t j = 0; j <= kept_; ++j) sum = fma(input(token, t + j, c), load(weight_ + j * block + c), sum);
    Vec grad = read(b_.grad_y, token + t, p_.channels, c);
    const Vec s = p_.silu ? sigmoid(sum) : broadcast(1);
    if (p_.gate) {
      T* grad_gate = static_cast<T*>(b_.grad_gate) + (token + t) * b_.grad_gate_stride + channel_ + c;
      store_some(grad_gate, grad * sum * s, used(c));
      grad *= read(p_.gate, token + t, p_.gate_stride, c);
    }
    return p_.silu ? grad * silu_slope(sum, s) : grad;
  }

  // Stores the complete gradient of input h. A history entry is not read again after this, so its gradient replaces it.
  void finish(int64_t token, int64_t h, int64_t c, Vec grad) {
    if (h >= kept_)
      store_some(static_cast<T*>(b_.grad_x) + (token + h - kept_) * b_.grad_x_stride + channel_ + c, grad, used(c));
    else
      store(history_ + h * block + c, grad);
  }

  const ShortConvBackward& b_;
  const ShortConv& p_;
  const int64_t channel_, n_, kept_;
  alignas(64) float weight_[max_taps * block], history_[max_taps * block], pending_[max_taps * block];
  alignas(64) float grad_weight_[max_taps * block], grad_state_[max_taps * block], bias_[block] = {}, grad_bias_[block] = {};
};

template <class T>
void backward_channels(const ShortConvBackward& b, int64_t begin, int64_t end) {
  for (int64_t channel = begin; channel < end; channel += block) {
    Backward<T> backward(b, channel, std::min(block, end - channel));
    for (int64_t row = 0; row < b.forward.rows; ++row) backward.row(row);
    backward.write();
  }
}

}  // namespace

void short_conv_pieces(const ShortConv& p, bool step, int64_t begin, int64_t end) {
  p.dtype == DType::bf16 ? run<bf16>(p, step, begin, end) : run<float>(p, step, begin, end);
}

void short_conv_backward_channels(const ShortConvBackward& b, int64_t begin, int64_t end) {
  b.forward.dtype == DType::bf16 ? backward_channels<bf16>(b, begin, end) : backward_channels<float>(b, begin, end);
}

}  // namespace based::kernels::cpu::BASED_ISA
