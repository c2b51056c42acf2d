#include "based/ops/framework/operator.h"

namespace based::ops::operators {
namespace {

// "Tensor(a!) state" of "written(state)"; `alias` is the next letter.
std::string declared(std::string_view argument, Kind kind, bool trailing, char& alias) {
  const std::string name(name_of(argument));
  if (kind == Kind::tensor || kind == Kind::optional_tensor) {
    std::string type = "Tensor";
    if (argument.starts_with("written(")) type.append("(").append(1, alias++).append("!)");
    return kind == Kind::tensor ? type + " " + name : type + "? " + name + (trailing ? "=None" : "");
  }
  std::string text = kind == Kind::integer ? "int " : kind == Kind::number ? "float " : "bool ";
  text += name;
  if (!argument.starts_with("or_else(")) return text;
  const size_t comma = argument.find(',');
  const std::string_view value = trimmed(argument.substr(comma + 1, argument.rfind(')') - comma - 1));
  return text.append("=").append(value == "true" ? "True" : value == "false" ? "False" : value);
}

}  // namespace

std::string qualified(std::string_view name) { return std::string(kPrefix).append(name); }

std::string displayed(std::string_view qualified_name) {
  if (!qualified_name.starts_with(kPrefix)) return std::string(qualified_name);
  return std::string("based::").append(qualified_name.substr(kPrefix.size()));
}

std::string schema_text(std::string_view name, std::string_view suffix, std::span<const std::string_view> arguments,
                        std::span<const Kind> kinds, std::span<const std::string_view> outputs) {
  std::string text(name);
  text.append(suffix).append("(");
  size_t trailing = arguments.size();  // from here on an argument may be left out
  while (trailing > 0 && (kinds[trailing - 1] == Kind::optional_tensor || arguments[trailing - 1].starts_with("or_else("))) --trailing;
  char alias = 'a';
  for (size_t at = 0; at < arguments.size(); ++at)
    text.append(at == 0 ? "" : ", ").append(declared(arguments[at], kinds[at], at >= trailing, alias));
  if (outputs.size() == 1) return text + ") -> Tensor";
  text += ") -> (";
  for (size_t at = 0; at < outputs.size(); ++at) text.append(at == 0 ? "Tensor " : ", Tensor ").append(outputs[at]);
  return text + ")";
}

}  // namespace based::ops::operators
