#include "theory/polynomial.h"

#include <algorithm>
#include <iterator>

#include "theory/integers.h"

namespace based::theory {
Polynomial::Polynomial(int64_t constant) { add({}, constant); }

Polynomial Polynomial::variable(int index) {
  Polynomial result;
  result.add({index}, 1);
  return result;
}

void Polynomial::add(const Monomial& monomial, int64_t coefficient) {
  if (coefficient == 0) return;
  const auto [term, is_new] = terms_.try_emplace(monomial, coefficient);
  if (is_new) return;
  term->second = Integers::sum(term->second, coefficient);
  if (term->second == 0) terms_.erase(term);
}

int64_t Polynomial::degree() const {
  int64_t degree = -1;
  for (const auto& [monomial, coefficient] : terms_) degree = std::max(degree, static_cast<int64_t>(monomial.size()));
  return degree;
}

int64_t Polynomial::coefficient(const Monomial& monomial) const {
  const auto term = terms_.find(monomial);
  return term == terms_.end() ? 0 : term->second;
}

int64_t Polynomial::evaluate(std::span<const int64_t> values) const {
  int64_t sum = 0;
  for (const auto& [monomial, coefficient] : terms_) {
    int64_t product = coefficient;
    for (const int variable : monomial) product = Integers::product(product, values[static_cast<size_t>(variable)]);
    sum = Integers::sum(sum, product);
  }
  return sum;
}

Polynomial& Polynomial::operator+=(const Polynomial& other) {
  if (this == &other) return *this = *this * Polynomial(2);
  for (const auto& [monomial, coefficient] : other.terms_) add(monomial, coefficient);
  return *this;
}

Polynomial operator*(const Polynomial& a, const Polynomial& b) {
  Polynomial result;
  for (const auto& [left, left_coefficient] : a.terms_) {
    for (const auto& [right, right_coefficient] : b.terms_) {
      Monomial both(left.size() + right.size());
      std::merge(left.begin(), left.end(), right.begin(), right.end(), both.begin());
      result.add(both, Integers::product(left_coefficient, right_coefficient));
    }
  }
  return result;
}

Polynomial Polynomial::substitute(const std::function<Polynomial(int)>& replacement) const {
  Polynomial result;
  for (const auto& [monomial, coefficient] : terms_) {
    Polynomial product(coefficient);
    for (const int variable : monomial) product = product * replacement(variable);
    result += product;
  }
  return result;
}

Polynomial Polynomial::multilinear() const {
  Polynomial result;
  for (const auto& [monomial, coefficient] : terms_) {
    Monomial once;
    std::unique_copy(monomial.begin(), monomial.end(), std::back_inserter(once));
    result.add(once, coefficient);
  }
  return result;
}

Polynomial Polynomial::block_exclusive(std::span<const int> block_of) const {
  Polynomial result;
  for (const auto& [monomial, coefficient] : multilinear().terms_) {
    Polynomial term;
    term.add(monomial, coefficient);
    if (term.is_block_exclusive(block_of)) result.add(monomial, coefficient);
  }
  return result;
}

bool Polynomial::is_block_exclusive(std::span<const int> block_of) const {
  for (const auto& [monomial, coefficient] : terms_) {
    std::vector<int> blocks;
    for (const int variable : monomial) blocks.push_back(block_of[static_cast<size_t>(variable)]);
    std::sort(blocks.begin(), blocks.end());
    if (std::adjacent_find(blocks.begin(), blocks.end()) != blocks.end()) return false;
  }
  return true;
}

bool Polynomial::is_multilinear() const { return *this == multilinear(); }

std::string Polynomial::text(const std::function<std::string(int)>& name) const {
  std::string text;
  for (const auto& [monomial, coefficient] : terms_) {
    const bool negative = coefficient < 0;
    const std::string digits = std::to_string(coefficient).substr(negative ? 1 : 0);
    text += text.empty() ? (negative ? "-" : "") : (negative ? " - " : " + ");
    if (monomial.empty() || digits != "1") text += digits;
    for (size_t i = 0; i < monomial.size(); ++i) text += (i == 0 && digits == "1" ? "" : " ") + name(monomial[i]);
  }
  return text.empty() ? "0" : text;
}

std::vector<int> blocks_of(std::span<const int> widths) {
  std::vector<int> result;
  for (size_t block = 0; block < widths.size(); ++block)
    result.insert(result.end(), static_cast<size_t>(widths[block]), static_cast<int>(block));
  return result;
}

void for_each_input(std::span<const int> widths, const std::function<void(std::span<const int64_t>)>& visit) {
  const auto block_of = blocks_of(widths);
  std::vector<int64_t> input(block_of.size());
  std::vector<int> choice(widths.size());  // 0: no variable of the block is 1; k: the k-th variable is 1
  for (;;) {
    visit(input);
    size_t block = 0, first = 0;
    for (; block < widths.size(); first += static_cast<size_t>(widths[block++])) {
      if (choice[block] > 0) input[first + static_cast<size_t>(choice[block]) - 1] = 0;
      if (++choice[block] <= widths[block]) {
        input[first + static_cast<size_t>(choice[block]) - 1] = 1;
        break;
      }
      choice[block] = 0;
    }
    if (block == widths.size()) return;
  }
}

Polynomial interpolate(std::span<const int> widths, const BooleanFunction& f) {
  constexpr int64_t kMostInputs = 1 << 22;
  int64_t inputs = 1;
  for (const int width : widths) {
    inputs *= width + 1;
    if (inputs > kMostInputs) throw Error("interpolation: more than 2^22 inputs; take smaller sizes");
  }
  std::vector<int64_t> table;
  std::vector<Monomial> monomials;
  table.reserve(static_cast<size_t>(inputs));
  for_each_input(widths, [&](std::span<const int64_t> input) {
    table.push_back(f(input));
    Monomial ones;
    for (size_t i = 0; i < input.size(); ++i) {
      if (input[i] == 1) ones.push_back(static_cast<int>(i));
    }
    monomials.push_back(std::move(ones));
  });
  // Along each block, subtracts the value of choice 0 from that of choice k.
  size_t stride = 1;
  for (const int width : widths) {
    const size_t choices = static_cast<size_t>(width) + 1;
    for (size_t i = 0; i < table.size(); ++i) {
      const size_t choice = i / stride % choices;
      if (choice > 0) table[i] = Integers::sum(table[i], -table[i - choice * stride]);
    }
    stride *= choices;
  }
  Polynomial result;
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i] == 0) continue;
    Polynomial term(table[i]);
    for (const int variable : monomials[i]) term = term * Polynomial::variable(variable);
    result += term;
  }
  return result;
}

}  // namespace based::theory
