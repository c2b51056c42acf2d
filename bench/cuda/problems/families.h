// Families of cases by name, of which a command line may ask for some.
#pragma once
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string_view>
#include <vector>

namespace based::bench {

template <class Report>
struct Family {
  const char* name;
  void (*run)(Report&);
};

// The names of a command line; none are all.
class Names {
 public:
  Names(int count, char** names) : names_(names, names + count) {}
  bool has(std::string_view name) const { return names_.empty() || std::find(names_.begin(), names_.end(), name) != names_.end(); }
  // Whether each is a family's; says on stderr which are, where one is not.
  template <class Families>
  bool known(const char* program, const Families& families) const {
    for (const std::string_view name : names_) {
      if (std::any_of(std::begin(families), std::end(families), [&](const auto& f) { return f.name == name; })) continue;
      std::fprintf(stderr, "%s: no cases are named %.*s; there are", program, static_cast<int>(name.size()), name.data());
      for (const auto& family : families) std::fprintf(stderr, " %s", family.name);
      std::fprintf(stderr, "\n");
      return false;
    }
    return true;
  }

 private:
  std::vector<std::string_view> names_;
};

}  // namespace based::bench
