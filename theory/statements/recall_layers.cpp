#include <cmath>
#include <cstdlib>
#include <limits>

#include "based/core/text.h"
#include "theory/block_recall.h"
#include "theory/index_protocol.h"
#include "theory/layer_bounds.h"
#include "theory/primitives.h"
#include "theory/statements/random_layer.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace recall_layers_statement {

// Alice's part of the protocol: she substitutes her rows into the layers' polynomial and sends the resulting polynomial in the d bits of
// the query.
Polynomial query_polynomial(const Program& program, const IntMatrix& rows) {
  Matrix<Polynomial> u(program.outer);
  for (size_t at = 0; at < u.cells.size(); ++at) u.cells[at] = rows.cells[at];
  const int64_t query = program.outer.rows - 1;
  for (int64_t k = 0; k < program.outer.columns; ++k) u.at(query, k) = Polynomial::variable(static_cast<int>(k));
  Polynomials arithmetic;
  return run<Polynomials>(program, u, arithmetic).at(query, 0).multilinear();
}

int64_t bits_of(const Polynomial& polynomial) {
  int64_t largest = 1;
  for (const auto& [monomial, coefficient] : polynomial.terms()) largest = std::max(largest, std::abs(coefficient));
  return ceil_log2(largest + 1) + 1;  // including the sign
}

// The first bit of a value is Alice's bit. Tries all inputs for N ≤ 8 and random ones for N = 16.
void try_protocol(Trial& trial, int64_t width, Random& random) {
  const PHot compact{width, 2, true};
  const int64_t length = compact.tokens(), one = 0, zero = length / 2;
  const Program program = block_recall(compact, length);
  trial.layers(program.depth(), "Ω(ε log log N)");
  const int64_t most = multilinear_monomials(width, int64_t{1} << program.depth());
  int64_t most_bits = 0;
  for (int64_t input = 0; input < (length <= 8 ? int64_t{1} << length : 50); ++input) {
    std::vector<int64_t> tokens, bits;
    for (int64_t key = 0; key < length; ++key) {
      bits.push_back(length <= 8 ? input >> key & 1 : random.between(0, 1));
      tokens.insert(tokens.end(), {key, bits.back() == 1 ? one : zero});
    }
    tokens.push_back(-1);
    const Polynomial message = query_polynomial(program, encoded(compact, tokens));
    const auto sent = static_cast<int64_t>(message.terms().size());
    trial.require(message.degree() <= width && sent <= most, program.tuple() + ": " + std::to_string(sent) + " coefficients");
    most_bits = std::max(most_bits, most * bits_of(message));
    for (int64_t i = 0; i < length; ++i) {
      trial.require(message.evaluate(compact.encode(i)) == bits[static_cast<size_t>(i)],
                    program.tuple() + ": Bob is wrong about bit " + std::to_string(i));
      trial.count();
    }
  }
  trial.require(most_bits >= length, "fewer than N bits were sent");
  trial.note("N = " + std::to_string(length) + ": Alice's polynomial in " + std::to_string(width) + " bits, behind " +
             std::to_string(program.depth()) + " layers, takes at most " + std::to_string(most_bits) + " bits; Bob reads all N off it");
}

void try_printed_count(Trial& trial) {
  const PHot one_bit{1, 2, true};
  const Polynomial message = query_polynomial(block_recall(one_bit, 2), encoded(one_bit, {0, 1, 1, 0, -1}));
  trial.count();
  trial.correct({"a polynomial of degree 2^L in d variables has at most d^(2^L) coefficients",
                 "d = 1, so that this is 1: the key 1 with the value 0 and the key 0 with the value 1 leave Q = " +
                     message.text([](int) { return "q"; }),
                 "Σ C(d, i) for i ≤ 2^L, at most (d + 1)^(2^L), of the multilinear form"},
                static_cast<int64_t>(message.terms().size()) == multilinear_monomials(1, 32));
}

// Two layers that use w·u twice each compute y = w⁶u⁴: a product has 2^(L+1) − 2 parameters, not 2^L as printed.
void try_printed_coefficients(Trial& trial) {
  const int64_t parameter = 8, layers = 2;  // N³ for N = 2
  Program program{{2, 1}, {2, 1}, {}};
  for (int64_t k = 0; k < layers; ++k) program.layers.push_back({"(wu)²", {{0, 0, parameter}}, {}, {}, {{0, 1, parameter}}});
  Polynomials arithmetic;
  const int64_t found = run<Polynomials>(program, symbols(program.outer), arithmetic).at(0, 0).coefficient({0, 0, 0, 0});
  const int64_t printed = 16 * 16 * 16 * 16;  // (N^α · Nd)^(2^L)
  trial.count();
  trial.require(found > printed && found <= coefficient_bound(program.outer, layers, parameter), "the coefficient of u⁴");
  trial.note(
      "coefficients of at most (2^O(log N) · N d)^(2^L): not with the parameters' own N^α. N = 2, d = 1, L = 2, N^α = 8 gives u⁴ the "
      "coefficient 8⁶ = " +
      std::to_string(found) + " > " + std::to_string(printed) +
      "; (w² (N + 1)(d + 1))^(2^L - 1) holds, w the largest, and changes constants alone");
}

void try_coefficients(Trial& trial) {
  trial.size("coefficients of random layers, N ≤ 3, d ≤ 2, L ≤ 2");
  Random random(37);
  Polynomials arithmetic;
  for (int k = 0; k < kSizes; ++k) {
    const Size size{random.between(1, 3), random.between(1, 2)};
    Program program{size, size, {}};
    for (int64_t layer = random.between(1, 2); layer > 0; --layer) program.layers.push_back(random_layer(random, size));
    for (const Polynomial& cell :
         run<Polynomials>(program, symbols(size), arithmetic).cells)  // entries are -1 … 1, or up to 2 where windows overlap
      trial.require(absolute_coefficients(cell) <= coefficient_bound(size, program.depth(), 2), program.tuple() + ": larger coefficients");
    trial.count();
  }
}

// The proof's instance has N distinct keys, so c ≥ N. For fixed c the number of layers does not grow with N.
void try_few_tokens(Trial& trial) {
  trial.size("c = 2, N ≤ 64");
  const PHot one_bit{1, 2, true};
  Random random(41);
  bool constant = true;
  for (int64_t keys = 1; keys <= 64; keys *= 2) {
    const Program program = block_recall(one_bit, keys);
    constant = constant && program.depth() == block_recall(one_bit, 1).depth();
    for (int k = 0; k < kInputs; ++k) {
      const int64_t match = random.between(0, keys - 1), value = random.between(0, 1);
      std::vector<int64_t> tokens;
      for (int64_t key = 0; key < keys; ++key)
        tokens.insert(tokens.end(), {key == match ? 1 : 0, key == match ? value : random.between(0, 1)});
      tokens.push_back(1);
      const IntMatrix found = run(program, encoded(one_bit, tokens));
      trial.count();
      constant = constant && found.at(2 * keys, 0) == one_bit.encode(value)[0];
    }
  }
  trial.correct(
      {"c ≤ N tokens", "c = 2, d = 1, at most one match: 5 layers recall from N = 1, 2, …, 64 keys alike, so that no bound grows with N",
       "c ≥ N, as the proof's N distinct keys need; with fewer tokens the proof gives log log c"},
      constant);
}

// Tabulates the bound, and the N from which on it is at least the printed (ε/2) log log N.
void tabulate(Trial& trial) {
  for (const double epsilon : {0.25, 0.5, 0.75}) {
    int first = 0;
    for (int k = 60; k >= 3; --k) {  // N = 2^2^k
      const double log_length = std::exp2(k), log_width = std::exp2((1 - epsilon) * k);
      if (static_cast<double>(least_layers_by_counting(log_length, log_width, 1)) < epsilon / 2 * k) break;
      first = k;
    }
    trial.require(first > 0, "the bound is below (ε/2) log log N for large N");
    const auto bound = [&](int k) { return least_layers_by_counting(std::exp2(k), std::exp2((1 - epsilon) * k), 1); };
    trial.note("ε = " + format_number(epsilon, 2) +
               ", d = 2^((log N)^(1-ε)): at least (ε/2) log log N layers from log log N = " + std::to_string(first) +
               " on; at log log N = 40 " + std::to_string(bound(40)) + ", printed " + format_number(epsilon / 2 * 40, 1));
  }
  for (const int k : {3, 4, 5, 6, 8, 16, 32}) {
    const double log_length = std::exp2(k);
    const int64_t bound = least_layers_by_counting(log_length, k, 1);
    std::string built;
    if (k <= 6)
      built = "; built " + std::to_string(block_recall({int64_t{1} << k, 2, true}, 1).depth()) + " for one query behind any number of keys";
    trial.note("log log N = " + std::to_string(k) + ", c = N, d = log N: by counting at least " + std::to_string(bound) +
               " layers, by the degree " + std::to_string(k >= 62 ? k : least_layers(2 * (int64_t{1} << k) + 1)) + built);
    trial.require(k > 6 || bound <= block_recall({int64_t{1} << k, 2, true}, 1).depth(), "fewer layers were built than the bound");
  }
}

void verify(Trial& trial) {
  trial.size("the protocol, N = 2, 4, 8 all inputs, N = 16");
  Random random(43);
  for (const int64_t width : {1, 2, 3, 4}) try_protocol(trial, width, random);
  try_printed_count(trial);
  try_printed_coefficients(trial);
  try_coefficients(trial);
  try_few_tokens(trial);
  tabulate(trial);
}

}  // namespace recall_layers_statement

extern const Statement statement_recall_layers{"recall_layers", "Theorem 'poly-layer'",
                                               "AR with log c ≤ d ≤ 2^((log N)^(1-ε)) needs Ω(ε log log N) layers", 3262,
                                               recall_layers_statement::verify};

}  // namespace based::theory
