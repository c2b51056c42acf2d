// Families of cases, which register themselves by name. The command line can select some.
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

template <class Report>
std::vector<Family<Report>>& registered_families() {
  static std::vector<Family<Report>> families;
  return families;
}

// Adds a family to the program, from namespace scope.
template <class Report>
class DefineFamily {
 public:
  DefineFamily(const char* name, void (*run)(Report&)) { registered_families<Report>().push_back({name, run}); }
  DefineFamily(const DefineFamily&) = delete;
  DefineFamily& operator=(const DefineFamily&) = delete;
};

// All families of the program, sorted by name: files register them in an order that depends on the linker.
template <class Report>
std::vector<Family<Report>> families() {
  std::vector<Family<Report>> sorted = registered_families<Report>();
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return std::string_view(a.name) < b.name; });
  return sorted;
}

// The names on the command line; none selects all families.
class Names {
 public:
  Names(int count, char** names) : names_(names, names + count) {}
  bool has(std::string_view name) const { return names_.empty() || std::find(names_.begin(), names_.end(), name) != names_.end(); }
  // Whether each name is that of a family; where one is not, prints the families' names to stderr.
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
