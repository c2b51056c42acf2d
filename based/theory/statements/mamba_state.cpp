#include <cmath>
#include <cstdlib>

#include "based/theory/statements/trials.h"

namespace based::theory {
namespace {

// A layer as the paper defines Mamba, h[i, j] = Ā h[i-1, j] + B̄ᵢ u[i, j] and z[i, j] = Cᵢᵀ h[i, j], that recalls N bits from d·n entries.
// Δ = ½ for every token and A = 2πJ, J a rotation by a right angle in each plane: Ā = exp(πJ) = -I, and B̄ = A⁻¹(Ā - I)B = -2A⁻¹B is any
// vector one likes. B and C are read off n of the channels. Entries of the state are -1, 0 and 1.
class SquareRoot {
 public:
  explicit SquareRoot(int64_t bits) : bits_(bits) {
    while (side_ * side_ < bits) ++side_;
    states_ = side_ + side_ % 2;  // planes
    channels_ = side_ + states_;
    state_.assign(static_cast<size_t>(channels_ * states_), 0);
  }
  int64_t channels() const { return channels_; }  // d
  int64_t states() const { return states_; }      // n
  bool small() const {
    return std::all_of(state_.begin(), state_.end(), [](int64_t entry) { return std::abs(entry) <= 1; });
  }

  // Key `key` with its bit: the token's first channels hold ±bit at the key's column, the others its row, one-hot.
  void write(int64_t key, int64_t bit) { step(token(key, key % 2 == 0 ? bit : -bit)); }
  // What is read behind the layer: the sum of ReLU(±z - 1) over the first channels. The query writes the 1 that chooses a column.
  int64_t read(int64_t key) {
    const std::vector<int64_t> kept = state_;
    const int64_t sign = bits_ % 2 == 0 ? 1 : -1;
    const std::vector<int64_t> u = token(key, sign);
    step(u);
    int64_t found = 0;
    for (int64_t j = 0; j < side_; ++j) {
      int64_t z = 0;
      for (int64_t k = 0; k < states_; ++k) z += u[static_cast<size_t>(side_ + k)] * entry(j, k);
      found += std::max<int64_t>(0, sign * z - 1);
    }
    state_ = kept;
    return found;
  }

 private:
  std::vector<int64_t> token(int64_t key, int64_t value) const {
    std::vector<int64_t> u(static_cast<size_t>(channels_));
    u[static_cast<size_t>(key % side_)] = value;
    u[static_cast<size_t>(side_ + key / side_)] = 1;
    return u;
  }
  void step(const std::vector<int64_t>& u) {
    for (int64_t j = 0; j < channels_; ++j)
      for (int64_t k = 0; k < states_; ++k)
        entry(j, k) = -entry(j, k) + u[static_cast<size_t>(side_ + k)] * (j < side_ ? u[static_cast<size_t>(j)] : 0);
  }
  int64_t& entry(int64_t channel, int64_t state) { return state_[static_cast<size_t>(channel * states_ + state)]; }

  int64_t bits_, side_ = 1, states_ = 0, channels_ = 0;
  std::vector<int64_t> state_;
};

bool recalls(Trial& trial, int64_t bits, const std::function<int64_t(int64_t)>& bit) {
  SquareRoot model(bits);
  for (int64_t key = 0; key < bits; ++key) model.write(key, bit(key));
  bool right = model.small();
  for (int64_t key = 0; key < bits; ++key) right = right && model.read(key) == bit(key);
  trial.count();
  return trial.require(right, "N = " + std::to_string(bits) + ": a bit is not recalled");
}

// exp(ΔA) and A⁻¹(exp(ΔA) - I) of one plane in doubles, by their series: -I and J/π.
void try_discretisation(Trial& trial) {
  const double pi = std::acos(-1.0);
  double re = 0, im = 0, term_re = 1, term_im = 0;  // J acts as the imaginary unit
  for (int k = 1; k < 60; ++k) {
    re += term_re, im += term_im;
    const double next_re = -term_im * pi / k, next_im = term_re * pi / k;
    term_re = next_re, term_im = next_im;
  }
  // (exp - 1) / (2πi)
  const double b_re = im / (2 * pi), b_im = -(re - 1) / (2 * pi);
  constexpr double kBound = 1e-12;  // 60 terms below π⁶⁰/60! and their rounding, each below π³/3!·2⁻⁵²
  trial.require(std::abs(re + 1) < kBound && std::abs(im) < kBound, "exp(πJ) is not -I");
  trial.require(std::abs(b_re) < kBound && std::abs(b_im - 1 / pi) < kBound, "A⁻¹(exp(ΔA) - I) is not J/π");
}

void verify(Trial& trial) {
  try_discretisation(trial);
  for (const int64_t bits : {1, 2, 4, 9, 12}) {
    trial.size("N=" + std::to_string(bits));
    for (int64_t all = 0; all < int64_t{1} << bits; ++all)
      if (!recalls(trial, bits, [&](int64_t key) { return all >> key & 1; })) return;
  }
  Random random(23);
  int64_t width = 0;
  bool right = true;
  constexpr int64_t kLargestLength = 1024;
  for (const int64_t bits : {64L, 256L, static_cast<long>(kLargestLength)}) {
    trial.size("N=" + std::to_string(bits));
    for (int k = 0; k < 4; ++k) {
      IntMatrix x = random_matrix(random, {1, bits}, 0, 1);
      right = recalls(trial, bits, [&](int64_t key) { return x.at(0, key); }) && right;
    }
    const SquareRoot model(bits);
    width = model.channels() + model.states();
    right = right && model.channels() * model.states() >= bits && width <= 3 * static_cast<int64_t>(std::sqrt(bits)) + 3;
  }
  trial.correct({"a causal Mamba with entries of O(1) bits needs d + n ≥ Ω(N): its state is counted as 3n + d entries",
                 "h has n entries for each of d channels; N = " + std::to_string(kLargestLength) +
                     " bits are recalled with d + n = " + std::to_string(width) + ", and with at most 3√N + 3 at any N",
                 "d·n ≥ Ω(N), which this layer meets but for a factor of 2"},
                right && width < kLargestLength / 4);
}

}  // namespace

extern const Statement statement_mamba_state{"mamba_state", "Corollary 'mamba-ar'", "what a Mamba layer needs to recall N bits", verify};

}  // namespace based::theory
