// A number with the arithmetic that made it, such as "4 · heads · (head_dim + 1)": what a mixer says of its state.
#pragma once
#include <cstdint>
#include <string>

namespace based {

class Formula {
 public:
  Formula() = default;      // none
  Formula(int64_t number);  // written in digits
  Formula(std::string name, int64_t value) : text_(std::move(name)), value_(value) {}

  bool is_none() const { return text_.empty(); }
  const std::string& text() const { return text_; }
  int64_t value() const { return value_; }

  // Of two that are not none. Throw Error where the value does not fit into 63 bits; a quotient is rounded down.
  friend Formula operator+(const Formula& a, const Formula& b);
  friend Formula operator-(const Formula& a, const Formula& b);
  friend Formula operator*(const Formula& a, const Formula& b);
  friend Formula operator/(const Formula& a, const Formula& b);

 private:
  enum class Kind { name, product, quotient, sum };
  static Formula joined(const Formula& a, char sign, const Formula& b, bool overflows, int64_t value);
  std::string text_;
  int64_t value_ = 0;
  Kind kind_ = Kind::name;
};

}  // namespace based
