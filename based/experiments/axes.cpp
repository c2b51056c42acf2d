#include "based/experiments/axes.h"

#include <algorithm>
#include <optional>

#include "based/core/text.h"

namespace based {
namespace {

constexpr size_t max_points = 10'000;
constexpr int max_ties = 16;     // longest chain of ties to ties
constexpr size_t max_axes = 64;  // axes of a series, each of which is a level of recursion

const Config::Table& members(const Config& table) { return std::get<Config::Table>(table.value()); }

struct Axis {
  std::string path;
  const Config* list = nullptr;
};

// The first list in a table or in its nested tables.
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

// "= KEY" or "= KEY / 4".
struct Tie {
  std::string key;
  char operation = 0;
  int64_t number = 0;
};

// A hand-written parser, because std::regex uses a stack frame for each character.
std::optional<Tie> parse_tie(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r", kDigits = "0123456789",
                             kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
  constexpr size_t kMostDigits = 9;
  const auto skip_space = [&] { text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size())); };
  const auto take = [&](std::string_view letters) {
    const std::string_view taken = text.substr(0, text.find_first_not_of(letters));
    text.remove_prefix(taken.size());
    return std::string(taken);
  };
  Tie tie;
  text.remove_prefix(1);
  skip_space();
  if (text.empty() || kLetters.find(text.front()) == std::string_view::npos) return {};
  tie.key = take(std::string(kLetters) + std::string(kDigits) + ".");
  skip_space();
  if (text.empty()) return tie;
  if (std::string_view("*/+-").find(text.front()) == std::string_view::npos) return {};
  tie.operation = text.front();
  text.remove_prefix(1);
  skip_space();
  const std::string digits = take(kDigits);
  skip_space();
  if (digits.empty() || digits.size() > kMostDigits || !text.empty()) return {};
  tie.number = std::stoll(digits);
  return tie;
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
    const std::optional<Tie> parsed = parse_tie(*tie_of(tie));
    if (!parsed) refuse(tie, path, "a tie is \"= KEY\", or \"= KEY / 4\" with one of * / + - and an integer");
    if (depth == max_ties) refuse(tie, path, "it is tied to itself");
    const auto [found, found_path] = look_up(parsed->key, path);
    if (found == nullptr)
      refuse(tie, path, "the model has no key " + in_quotes(parsed->key) + " here; a default is not looked up, so write it down");
    const int64_t left = tie_of(*found) != nullptr ? number(*found, found_path, depth + 1) : integer(*found, tie, path, parsed->key);
    return parsed->operation != 0 ? computed(left, parsed->operation, parsed->number, tie, path) : left;
  }

  static int64_t integer(const Config& found, const Config& tie, const std::string& path, const std::string& name) {
    const auto* value = std::get_if<int64_t>(&found.value());
    if (value == nullptr) refuse(tie, path, printable(name) + " is no integer");
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
    if (axes.size() == max_axes)
      throw UsageError(axis.list->where() + "a series' model has more than " + std::to_string(max_axes) + " lists");
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

Config merged(Config base, const Config& top) {
  if (top.is_null()) return base;
  if (!base.is_table()) return top;
  for (const auto& [key, value] : members(top)) {
    const Config* below = base.find(key);
    base.set(key, below != nullptr && below->is_table() && value.is_table() ? merged(*below, value) : value);
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
