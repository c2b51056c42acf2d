#include "based/core/json.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <unordered_set>
#include <vector>

#include "based/core/text.h"

namespace based {
namespace {

// Counts the bytes that the parser has read, so that the messages of this file's checks have an offset.
class CountingIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Builds the tree without ordered_map's insertion, whose linear search would make parsing quadratic in the number of keys.
class Builder {
 public:
  using Object = Json::object_t;
  using Members = std::vector<Object::value_type>;

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(int64_t value) { return add(Json(value)); }
  bool number_unsigned(uint64_t value) { return add(Json(value)); }
  bool number_float(double value, const std::string&) { return add(Json(value)); }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    if (!is_new(open_.back(), name)) {
      problem_ = "duplicate key " + in_quotes(name);
      return false;
    }
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    std::string text = error.what();  // "[json.exception…] parse error at line 1, column 2: <reason>"
    if (const size_t column = text.find("column "); column != std::string::npos) {
      if (const size_t colon = text.find(": ", column); colon != std::string::npos) text = text.substr(colon + 2);
    }
    if (text.starts_with('[')) text = text.substr(text.find("] ") + 2);
    problem_ = "not valid JSON: " + printable(text, 200);
    position_ = position;
    return false;
  }

  Json& root() { return root_; }
  const std::string& problem() const { return problem_; }
  std::optional<size_t> position() const { return position_; }

 private:
  struct Open {
    Json* node;
    std::unordered_set<std::string> keys;
  };

  // Small objects, which are by far the most frequent, are searched linearly: a set of their keys would cost more than all other parsing.
  static bool is_new(Open& object, const std::string& name) {
    constexpr size_t kSmall = 12;
    const Members& members = object.node->get_ref<const Object&>();
    if (members.size() < kSmall) {
      return std::none_of(members.begin(), members.end(), [&](const auto& member) { return member.first == name; });
    }
    if (members.size() == kSmall) {
      for (const auto& member : members) object.keys.insert(member.first);
    }
    return object.keys.insert(name).second;
  }

  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back().node;
    if (parent.is_array()) {
      auto& items = parent.get_ref<Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    Members& members = parent.get_ref<Object&>();
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == static_cast<size_t>(kMaxJsonDepth)) {
      problem_ = "nested deeper than " + std::to_string(kMaxJsonDepth) + " arrays and objects";
      return false;
    }
    open_.push_back({place(std::move(value)), {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Open> open_;
  std::string key_;
  std::string problem_;
  std::optional<size_t> position_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& source) {
  if (text.empty()) throw Error(source + ": not valid JSON: the text is empty");
  // nlohmann takes a NUL byte outside a string for the end of the text.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(source + ": byte " + std::to_string(nul + 1) + ": not valid JSON: a NUL byte");
  }
  const char* reached = text.data();
  const CountingIterator first(text.data(), &reached), last(text.data() + text.size(), &reached);
  Builder builder;
  if (!Json::sax_parse(first, last, &builder)) {
    const size_t offset = builder.position().value_or(static_cast<size_t>(reached - text.data()));
    throw Error(source + ": byte " + std::to_string(offset) + ": " + builder.problem());
  }
  return std::move(builder.root());
}

std::string dump_json(const Json& value, int indent) { return value.dump(indent, ' ', false, Json::error_handler_t::replace); }

}  // namespace based
