#include "based/experiments/axes.h"

#include <regex>

#include "based/core/text.h"

namespace based {
namespace {

constexpr size_t max_points = 10'000;
constexpr int max_ties = 16;  // that lead from one to the next

const Config::Table& members(const Config& table) { return std::get<Config::Table>(table.value()); }

struct Axis {
  std::string path;
  const Config* list = nullptr;
};

// The first list of a table and those in it.
Axis first_axis(const Config& table, const std::string& prefix) {
  for (const auto& [key, value] : members(table)) {
    const std::string path = config_detail::join(prefix, key);
    if (value.is_array() && key != "layers") return {path, &value};
    if (!value.is_table()) continue;
    if (Axis found = first_axis(value, path); found.list != nullptr) return found;
  }
  return {};
}

const Config* at_path(const Config& root, const std::string& path) {
  const Config* at = &root;
  for (size_t begin = 0; at != nullptr && begin <= path.size();) {
    const size_t dot = std::min(path.find('.', begin), path.size());
    at = at->find(path.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return at;
}

const std::string* tie_of(const Config& value) {
  const auto* text = std::get_if<std::string>(&value.value());
  return text != nullptr && text->starts_with('=') ? text : nullptr;
}

class Ties {
 public:
  explicit Ties(const Config& root) : root_(root) {}

  Config resolved(const Config& value, const std::string& path) const {
    if (value.is_table()) {
      Config::Table table;
      for (const auto& [key, member] : members(value)) table.emplace_back(key, resolved(member, config_detail::join(path, key)));
      return Config(std::move(table), value.where());
    }
    return tie_of(value) == nullptr ? value : Config(number(value, path, 0), value.where());
  }

 private:
  [[noreturn]] static void refuse(const Config& tie, const std::string& path, const std::string& why) {
    throw UsageError(tie.where() + "model." + path + " = " + in_quotes(*tie_of(tie)) + ": " + why);
  }

  int64_t number(const Config& tie, const std::string& path, int depth) const {
    static const std::regex form(R"(=\s*([A-Za-z_][A-Za-z0-9_.]*)\s*(?:([*/+-])\s*([0-9]{1,9}))?\s*)");
    std::smatch parts;
    if (!std::regex_match(*tie_of(tie), parts, form))
      refuse(tie, path, "a tie is \"= KEY\", or \"= KEY / 4\" with one of * / + - and an integer");
    if (depth == max_ties) refuse(tie, path, "it is tied to itself");
    const auto [found, found_path] = look_up(parts[1], path);
    if (found == nullptr)
      refuse(tie, path, "the model has no key " + in_quotes(parts[1].str()) + " here; a default is not looked up, so write it down");
    const int64_t left = tie_of(*found) != nullptr ? number(*found, found_path, depth + 1) : integer(*found, tie, path, parts[1]);
    return parts[2].matched ? computed(left, *parts[2].first, std::stoll(parts[3]), tie, path) : left;
  }

  static int64_t integer(const Config& found, const Config& tie, const std::string& path, const std::string& name) {
    const auto* value = std::get_if<int64_t>(&found.value());
    if (value == nullptr) refuse(tie, path, name + " is no integer");
    return *value;
  }

  static int64_t computed(int64_t left, char operation, int64_t right, const Config& tie, const std::string& path) {
    int64_t result = 0;
    if (operation == '/') {
      if (right == 0 || left % right != 0) refuse(tie, path, std::to_string(left) + " / " + std::to_string(right) + " is no integer");
      return left / right;
    }
    const bool overflow = operation == '*'   ? __builtin_mul_overflow(left, right, &result)
                          : operation == '+' ? __builtin_add_overflow(left, right, &result)
                                             : __builtin_sub_overflow(left, right, &result);
    if (overflow) refuse(tie, path, "the result does not fit into 64 bits");
    return result;
  }

  std::pair<const Config*, std::string> look_up(const std::string& name, std::string path) const {
    while (name.find('.') == std::string::npos && path.find('.') != std::string::npos) {
      path.erase(path.rfind('.'));
      const std::string there = path + "." + name;
      if (const Config* found = at_path(root_, there)) return {found, there};
    }
    return {at_path(root_, name), name};
  }

  const Config& root_;
};

void expand(const Config& table, std::vector<std::string> axes, std::vector<AxisPoint>& found) {
  if (const Axis axis = first_axis(table, ""); axis.list != nullptr) {
    const auto& values = std::get<Config::Array>(axis.list->value());
    if (values.empty())
      throw UsageError(axis.list->where() + "model." + axis.path + " is an empty list: nothing would be trained; name at least one value");
    axes.push_back(axis.path);
    for (const Config& value : values) {
      if (value.is_array() || value.is_table())
        throw UsageError(value.where() + "model." + axis.path + " is an axis: its values must be single ones");
      Config one = table;
      one.set(axis.path, value);
      expand(one, axes, found);
    }
    return;
  }
  if (found.size() == max_points) throw UsageError("the lists of a series make more than " + std::to_string(max_points) + " points");
  AxisPoint point{"", Ties(table).resolved(table, "")};
  for (const std::string& axis : axes) {
    const Config* value = at_path(point.model, axis);
    const auto* text = std::get_if<std::string>(&value->value());
    const std::string name = axis.substr(axis.rfind('.') + 1);
    point.label += (point.label.empty() ? "" : " ") + name + "=" + (text != nullptr ? *text : value->to_json(-1));
  }
  found.push_back(std::move(point));
}

}  // namespace

Config laid_over(Config base, const Config& top) {
  if (top.is_null()) return base;
  if (!base.is_table()) return top;
  for (const auto& [key, value] : members(top)) {
    const Config* below = base.find(key);
    base.set(key, below != nullptr && below->is_table() && value.is_table() ? laid_over(*below, value) : value);
  }
  return base;
}

std::vector<AxisPoint> expand_axes(const Config& model) {
  std::vector<AxisPoint> found;
  expand(model, {}, found);
  return found;
}

Config without_defaults(const Config& config, const Config& defaults) {
  Config::Table kept;
  for (const auto& [key, value] : members(config)) {
    const Config* usual = defaults.find(key);
    if (usual != nullptr && usual->to_json(-1) == value.to_json(-1)) continue;
    kept.emplace_back(key, usual != nullptr && usual->is_table() && value.is_table() ? without_defaults(value, *usual) : value);
  }
  return Config(std::move(kept));
}

}  // namespace based
