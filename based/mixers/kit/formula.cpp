#include "based/mixers/kit/formula.h"

#include "based/core/error.h"

namespace based {

Formula::Formula(int64_t number) : text_(std::to_string(number)), value_(number) {}

// Brackets go around a sum inside a product or quotient, and around a right operand that would otherwise be parsed differently.
Formula Formula::combine(const Formula& a, char sign, const Formula& b, bool overflows, int64_t value) {
  const auto in_brackets = [](const Formula& operand, bool needed) { return needed ? "(" + operand.text_ + ")" : operand.text_; };
  const Kind kind = sign == '*' ? Kind::product : sign == '/' ? Kind::quotient : Kind::sum;
  const bool right = sign == '+'   ? false
                     : sign == '-' ? b.kind_ == Kind::sum
                     : sign == '*' ? b.kind_ > Kind::product
                                   : b.kind_ != Kind::name;
  const std::string written = sign == '*' ? " · " : std::string(" ") + sign + " ";
  Formula whole(in_brackets(a, kind != Kind::sum && a.kind_ == Kind::sum) + written + in_brackets(b, right), value);
  if (overflows) throw Error("the value of " + whole.text_ + " does not fit into 63 bits");
  whole.kind_ = kind;
  return whole;
}

Formula operator+(const Formula& a, const Formula& b) {
  int64_t value = 0;
  const bool overflows = __builtin_add_overflow(a.value_, b.value_, &value);
  return Formula::combine(a, '+', b, overflows, value);
}
Formula operator-(const Formula& a, const Formula& b) {
  int64_t value = 0;
  const bool overflows = __builtin_sub_overflow(a.value_, b.value_, &value);
  return Formula::combine(a, '-', b, overflows, value);
}
Formula operator*(const Formula& a, const Formula& b) {
  int64_t value = 0;
  const bool overflows = __builtin_mul_overflow(a.value_, b.value_, &value);
  return Formula::combine(a, '*', b, overflows, value);
}
Formula operator/(const Formula& a, const Formula& b) {
  if (b.value_ == 0) throw Error("a formula divides by " + b.text() + ", which is 0");
  return Formula::combine(a, '/', b, /*overflows=*/false, a.value_ / b.value_);
}

}  // namespace based
