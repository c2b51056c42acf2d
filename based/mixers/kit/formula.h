// An integer together with the expression that it was computed from, such as "4 · heads · (head_dim + 1)". Mixers describe the size of
// their state by one.
#pragma once
#include <cstdint>
#include <string>

namespace based {

class Formula {
 public:
  Formula() = default;      // no formula
  Formula(int64_t number);  // a literal, printed in digits
  Formula(std::string name, int64_t value) : text_(std::move(name)), value_(value) {}

  bool is_none() const { return text_.empty(); }
  const std::string& text() const { return text_; }
  int64_t value() const { return value_; }

  // Neither operand may be none. Throw Error if the value does not fit into 63 bits. Quotients are rounded down.
  friend Formula operator+(const Formula& a, const Formula& b);
  friend Formula operator-(const Formula& a, const Formula& b);
  friend Formula operator*(const Formula& a, const Formula& b);
  friend Formula operator/(const Formula& a, const Formula& b);

 private:
  enum class Kind { name, product, quotient, sum };
  static Formula combine(const Formula& a, char sign, const Formula& b, bool overflows, int64_t value);
  std::string text_;
  int64_t value_ = 0;
  Kind kind_ = Kind::name;
};

}  // namespace based
