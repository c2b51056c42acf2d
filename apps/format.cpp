#include <array>
#include <cstdio>

#include "apps/command.h"

namespace based::apps {

void print_keys(const std::vector<FieldHelp>& keys) {
  for (const auto& key : keys) {
    std::string line = padded(key.name + " = " + key.default_value, 38) + "  ";
    print_line(line += key.help);
  }
}

std::string scientific(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1e", value);
  return text.data();
}

std::string grouped(int64_t count) {
  std::string digits = std::to_string(count);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > (count < 0 ? 1 : 0); at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

}  // namespace based::apps
