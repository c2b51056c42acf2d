// The visitors that implement read_config, write_config and config_help. Included only by config.h.
#pragma once
#include <algorithm>
#include <concepts>
#include <utility>

namespace based::config_detail {

struct Probe {
  template <class T>
  void operator()(const char*, T&, const char*) const {}
};
template <class T>
concept Visited = requires(T& value, Probe probe) {
  value.visit(probe);
};

template <class T>
struct Element : std::false_type {};
template <class T>
struct Element<std::vector<T>> : std::true_type {
  using type = T;
};
template <class T>
concept List = Element<T>::value;
template <class T>
struct MapValue : std::false_type {};
template <class T>
struct MapValue<std::map<std::string, T>> : std::true_type {
  using type = T;
};
template <class T>
concept Map = MapValue<T>::value;

[[noreturn]] void unknown_key(const Config& value, const std::string& key, const std::string& path, const std::vector<std::string>& known);
[[noreturn]] void wrong_type(const Config& value, const std::string& path, const char* wanted);
const Config::Array& array_of(const Config& config, std::string_view path);
const Config::Table& table_of(const Config& config, std::string_view path);

void read(const Config& config, bool& out, const std::string& path);
void read(const Config& config, int64_t& out, const std::string& path);
void read(const Config& config, double& out, const std::string& path);
void read(const Config& config, std::string& out, const std::string& path);
void read(const Config& config, Config& out, const std::string& path);
template <List T>
void read(const Config& config, T& out, const std::string& path);
template <Map T>
void read(const Config& config, T& out, const std::string& path);
template <Visited T>
void read(const Config& config, T& out, const std::string& path);

inline std::string join(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

template <List T>
void read(const Config& config, T& out, const std::string& path) {
  out.clear();
  for (const Config& item : array_of(config, path)) {
    typename Element<T>::type value{};
    read(item, value, path + "[" + std::to_string(out.size()) + "]");
    out.push_back(std::move(value));
  }
}

template <Map T>
void read(const Config& config, T& out, const std::string& path) {
  out.clear();
  for (const auto& [key, item] : table_of(config, path)) read(item, out[key], join(path, key));
}

// Reads each field of a struct. Remembers their names, so that other keys of the table can be rejected.
struct Reader {
  const Config& config;
  const std::string& path;
  std::vector<std::string> known;

  template <class T>
  void operator()(const char* name, T& value, const char*) {
    known.emplace_back(name);
    if (const Config* found = config.find(name)) read(*found, value, join(path, name));
  }
};

template <Visited T>
void read(const Config& config, T& out, const std::string& path) {
  if (config.is_null()) return;
  const Config::Table& members = table_of(config, path);
  Reader reader{config, path, {}};
  out.visit(reader);
  for (const auto& [key, value] : members) {
    if (std::find(reader.known.begin(), reader.known.end(), key) == reader.known.end()) unknown_key(value, key, path, reader.known);
  }
}

template <class T>
Config write(const T& value) {
  if constexpr (std::same_as<T, Config>) {
    return value;
  } else if constexpr (List<T>) {
    Config::Array items;
    for (const auto& item : value) items.push_back(write<typename Element<T>::type>(item));
    return Config(std::move(items));
  } else if constexpr (Map<T>) {
    Config::Table members;
    for (const auto& [key, item] : value) members.emplace_back(key, write(item));
    return Config(std::move(members));
  } else if constexpr (Visited<T>) {
    Config::Table members;
    T copy = value;  // visit is written for reading and is not const
    copy.visit([&](const char* name, auto& field, const char*) { members.emplace_back(name, write(field)); });
    return Config(std::move(members));
  } else {
    return Config(Config::Value(value));
  }
}

template <class T>
std::string type_name() {
  if constexpr (std::same_as<T, bool>) {
    return "bool";
  } else if constexpr (std::same_as<T, int64_t>) {
    return "integer";
  } else if constexpr (std::same_as<T, double>) {
    return "number";
  } else if constexpr (std::same_as<T, std::string>) {
    return "string";
  } else if constexpr (List<T>) {
    return "list of " + type_name<typename Element<T>::type>();
  } else {
    return "table";
  }
}

template <Visited T>
void collect_help(T& value, const std::string& path, std::vector<FieldHelp>& out) {
  value.visit([&]<class F>(const char* name, F& field, const char* help) {
    if constexpr (Visited<F>) {
      collect_help(field, join(path, name), out);
    } else {
      out.push_back({join(path, name), type_name<F>(), write(field).to_json(-1), help});
    }
  });
}

}  // namespace based::config_detail

namespace based {

template <class T>
T read_config(const Config& config) {
  T value;
  config_detail::read(config, value, "");
  return value;
}

template <class T>
Config write_config(const T& value) {
  return config_detail::write(value);
}

template <class T>
std::vector<FieldHelp> config_help() {
  std::vector<FieldHelp> fields;
  T value;
  config_detail::collect_help(value, "", fields);
  return fields;
}

}  // namespace based
