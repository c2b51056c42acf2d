#include "based/core/config.h"

#include <algorithm>
#include <charconv>

#include "based/core/files.h"
#include "based/core/json.h"
#include "based/core/text.h"

namespace based {
namespace {

Config from_json(const Json& json, const std::string& source, const std::string& path) {
  const std::string where = source + ": " + (path.empty() ? "" : path + ": ");
  switch (json.type()) {
    case Json::value_t::boolean: return Config(json.get<bool>(), where);
    case Json::value_t::number_integer: return Config(json.get<int64_t>(), where);
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) throw Error(where + "the number does not fit into 64 bits with a sign");
      return Config(json.get<int64_t>(), where);
    case Json::value_t::number_float: return Config(json.get<double>(), where);
    case Json::value_t::string: return Config(json.get<std::string>(), where);
    case Json::value_t::array: {
      Config::Array items;
      for (const Json& item : json) items.push_back(from_json(item, source, path + "[" + std::to_string(items.size()) + "]"));
      return Config(std::move(items), where);
    }
    case Json::value_t::object: {
      Config::Table members;
      for (const auto& [key, value] : json.items()) {
        members.emplace_back(key, from_json(value, source, config_detail::join(path, key)));
      }
      return Config(std::move(members), where);
    }
    default: return Config(Config::Value(), where);
  }
}

Json to_json_tree(const Config& config) {
  struct Visit {
    Json operator()(std::monostate) const { return nullptr; }
    Json operator()(const Config::Array& items) const {
      Json json = Json::array();
      for (const Config& item : items) json.push_back(to_json_tree(item));
      return json;
    }
    Json operator()(const Config::Table& members) const {
      Json json = Json::object();
      for (const auto& [key, value] : members) json[key] = to_json_tree(value);
      return json;
    }
    Json operator()(bool value) const { return value; }
    Json operator()(int64_t value) const { return value; }
    Json operator()(double value) const { return value; }
    Json operator()(const std::string& value) const { return value; }
  };
  return std::visit(Visit(), config.value());
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::vector<std::string> split_dots(std::string_view key, const std::string& where) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t dot = key.find('.', begin);
    parts.emplace_back(key.substr(begin, dot == std::string_view::npos ? dot : dot - begin));
    if (parts.back().empty()) throw UsageError(where + "key " + in_quotes(key) + " has an empty part");
    if (dot == std::string_view::npos) return parts;
    begin = dot + 1;
  }
}

}  // namespace

Config::Config(Value value, std::string where) : value_(std::move(value)), where_(std::move(where)) {}

Config Config::parse_toml_file(const std::string& path) { return parse_toml(read_file(path, kMaxConfigBytes), path); }
Config Config::parse_json_file(const std::string& path) { return parse_json(read_regular_file(path, kMaxConfigBytes), path); }

Config Config::parse_json(std::string_view text, const std::string& file) { return from_json(based::parse_json(text, file), file, ""); }

std::string Config::to_json(int indent) const { return dump_json(to_json_tree(*this), indent); }

const Config* Config::find(std::string_view key) const {
  const auto* members = std::get_if<Table>(&value_);
  if (members == nullptr) return nullptr;
  for (const auto& [name, value] : *members) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Config::set(std::string_view dotted_key, Config value) {
  const std::string where = value.where();
  const auto refuse = [&](const std::string& path, const std::string& why) {
    throw UsageError(where + "cannot set " + in_quotes(dotted_key) + ": " + in_quotes(path) + " " + why);
  };
  Config* node = this;
  std::string path;
  for (const std::string& part : split_dots(dotted_key, where)) {
    if (node->is_null()) node->value_ = Table();
    if (auto* items = std::get_if<Array>(&node->value_)) {
      size_t index = 0;
      const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
      if (error != std::errc() || end != part.data() + part.size() || index >= items->size()) {
        refuse(path, "is a list of " + std::to_string(items->size()) + ", and " + in_quotes(part) + " is no index into it");
      }
      node = &(*items)[index];
    } else if (auto* members = std::get_if<Table>(&node->value_)) {
      auto found = std::find_if(members->begin(), members->end(), [&](const auto& member) { return member.first == part; });
      if (found == members->end()) found = members->insert(members->end(), {part, Config(Value(), where)});
      node = &found->second;
    } else {
      refuse(path, "is a single value, not a table");
    }
    path = config_detail::join(path, part);
  }
  *node = std::move(value);
}

void Config::override_with(const std::string& key_equals_value) {
  const std::string where = "--set " + key_equals_value + ": ";
  const size_t equals = key_equals_value.find('=');
  if (equals == std::string::npos || equals == 0) throw UsageError(where + "write KEY=VALUE, for example train.steps=200");
  const std::string key = key_equals_value.substr(0, equals), text = key_equals_value.substr(equals + 1);
  Config value(text, where);
  try {
    // A line break in the text could define other keys. Such a text is taken as a plain string.
    const Config parsed = parse_toml("value = " + text, "--set " + key_equals_value);
    if (const Config* read = parsed.find("value"); read != nullptr && std::get<Table>(parsed.value()).size() == 1) {
      value = Config(read->value(), where);
    }
  } catch (const UsageError&) {  // not a TOML value: a plain string
  }
  set(key, std::move(value));
}

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(word.size() / 3, 2) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(word.substr(0, 200), candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

namespace config_detail {

std::string place_of(const std::string& path) { return path.empty() ? "" : " in [" + path + "]"; }

void unknown_key(const Config& value, const std::string& key, const std::string& path, const std::vector<std::string>& known) {
  std::string message = value.where() + "unknown key " + in_quotes(key) + place_of(path);
  if (const std::string near = nearest(key, known); !near.empty()) {
    message += "; did you mean '" + near + "'?";
  } else {
    message += "; known keys:";
    for (const std::string& name : known) message += (name == known.front() ? " " : ", ") + name;
  }
  throw UsageError(message);
}

void wrong_type(const Config& value, const std::string& path, const char* wanted) {
  struct Describe {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(int64_t i) const { return "the integer " + std::to_string(i); }
    std::string operator()(double d) const { return "the number " + dump_json(d); }
    std::string operator()(const std::string& s) const { return "the string " + in_quotes(s); }
    std::string operator()(const Config::Array&) const { return "a list"; }
    std::string operator()(const Config::Table&) const { return "a table"; }
  };
  const std::string subject = path.empty() ? "this" : "'" + path + "'";
  throw UsageError(value.where() + subject + " must be " + wanted + ", not " + std::visit(Describe(), value.value()));
}

void read(const Config& config, bool& out, const std::string& path) {
  const auto* value = std::get_if<bool>(&config.value());
  if (value == nullptr) wrong_type(config, path, "true or false");
  out = *value;
}

void read(const Config& config, int64_t& out, const std::string& path) {
  const auto* value = std::get_if<int64_t>(&config.value());
  if (value == nullptr) wrong_type(config, path, "an integer");
  out = *value;
}

void read(const Config& config, double& out, const std::string& path) {
  if (const auto* integer = std::get_if<int64_t>(&config.value())) {
    out = static_cast<double>(*integer);
  } else if (const auto* value = std::get_if<double>(&config.value())) {
    out = *value;
  } else {
    wrong_type(config, path, "a number");
  }
}

void read(const Config& config, std::string& out, const std::string& path) {
  const auto* value = std::get_if<std::string>(&config.value());
  if (value == nullptr) wrong_type(config, path, "a string");
  out = *value;
}

void read(const Config& config, Config& out, const std::string& path) {
  if (!config.is_null()) table_of(config, path);
  out = config;
}

const Config::Array& array_of(const Config& config, std::string_view path) {
  const auto* items = std::get_if<Config::Array>(&config.value());
  if (items == nullptr) wrong_type(config, std::string(path), "a list");
  return *items;
}

const Config::Table& table_of(const Config& config, std::string_view path) {
  const auto* members = std::get_if<Config::Table>(&config.value());
  if (members == nullptr) wrong_type(config, std::string(path), "a table");
  return *members;
}

}  // namespace config_detail
}  // namespace based
