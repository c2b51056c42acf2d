#include "theory/mamba_machine.h"

#include <cmath>

#include "based/core/random.h"
#include "theory/statement.h"

namespace based::theory {
namespace mamba_state_statement {

bool recalls_all(Trial& trial, const MambaSizes& sizes, const Bits& bits) {
  const RecurrentMachine machine = mamba_machine(sizes);
  const Bytes message = alice(machine, bits);
  bool right = true;
  for (int64_t i = 0; i < sizes.keys(); ++i) right = right && bob(machine, message, sizes.keys(), i) == bits[static_cast<size_t>(i)];
  trial.count(sizes.keys());
  return trial.require(right, "N = " + std::to_string(sizes.keys()) + ": a bit is lost");
}

bool recalls_random(Trial& trial, int64_t states, Random& random) {
  bool right = true;
  for (int k = 0; k < 4; ++k) {
    Bits bits(static_cast<size_t>(states * states));
    for (uint8_t& bit : bits) bit = static_cast<uint8_t>(random.below(2));
    right = recalls_all(trial, {states}, bits) && right;
  }
  return right;
}

// Checks by their series, in doubles, that exp(ΔA) and A⁻¹(exp(ΔA) - I) of one plane are -I and J/π.
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
  trial.size("all inputs, N = 4 and 16; random ones, N = 16, 64, 256, 1024");
  for (const int64_t states : {2, 4}) {
    if (trial.quick() && states > 2) continue;  // a million questions
    const Errors errors = count_errors(mamba_machine({states}), states * states);
    trial.count(errors.questions);
    trial.require(errors.wrong == 0, "n = " + std::to_string(states) + ": wrong answers");
  }
  try_discretisation(trial);
  Random random(31);
  bool fewer = true;
  std::string shown;
  for (const int64_t states : {4, 8, 16, 32}) {
    const MambaSizes sizes{states};
    const bool right = recalls_random(trial, states, random);
    const int64_t sum = sizes.model_dim() + sizes.states;
    trial.require(sizes.state_entries() >= sizes.keys(), "N = " + std::to_string(sizes.keys()) + ": fewer entries than bits");
    fewer = fewer && right && (states < 8 || sum < sizes.keys());
    shown += (shown.empty() ? "N = " : ", N = ") + std::to_string(sizes.keys()) + ": d + n = " + std::to_string(sum) +
             ", d·n = " + std::to_string(sizes.state_entries());
  }
  trial.correct({"d + n ≥ Ω(N), since the state is taken to be h[i-1, :] of n entries, and Δ, B and C",
                 "a Mamba layer with entries of -1, 0 and 1 recalls N keys for " + shown,
                 "h has a row of n entries for each of d channels: d·n ≥ Ω(N)"},
                fewer);
  trial.note("'Δ_N = Δ¹ + Δ¹' is Δ¹ + Δ²; parameters of u[0 … i-1] alone, as the footnote has them, could not depend on the query");
}

}  // namespace mamba_state_statement

extern const Statement statement_mamba_state{"mamba_state", "Corollary 'mamba-ar'",
                                             "a Mamba layer with entries of O(1) bits needs d + n ≥ Ω(N) to solve AR", 1'054'080,
                                             mamba_state_statement::verify};

}  // namespace based::theory
