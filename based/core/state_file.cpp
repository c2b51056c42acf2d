#include "based/core/state_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include "based/core/hash.h"
#include "based/core/json.h"
#include "based/core/text.h"
#include "based/core/utf8.h"

namespace based {
namespace {

constexpr std::array<char, 8> kMagic = {'B', 'A', 'S', 'E', 'D', 'S', 'T', '1'};
constexpr uint32_t kVersion = 1;

struct Prefix {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion, zero = 0;
  uint64_t file_size = 0, header_size = 0;
};
static_assert(sizeof(Prefix) == 32);
constexpr uint64_t kChecksumSize = 16;

struct Checksum {
  uint64_t low = 0, high = 0;
};

uint64_t padded(uint64_t size) { return (size + 7) / 8 * 8; }

class StateFileParser {
 public:
  StateFileParser(std::span<const std::byte> file, const std::string& source) : file_(file), source_(source) {}

  StateSnapshot parse() {
    const Prefix prefix = check_prefix();
    rest_ = file_.subspan(sizeof prefix, file_.size() - sizeof prefix - kChecksumSize);
    const std::span<const std::byte> text = take(prefix.header_size, "the header");
    const Json header = parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, source_ + ": header");
    if (!header.is_object()) fail("the header must be a table");
    only_keys(header, {"model", "tokens", "tensors", "metadata"}, "the header");
    StateSnapshot snapshot;
    snapshot.model_hash = text_of(header, "model", "the header");
    snapshot.token_ids = token_ids(member(header, "tokens", "the header"));
    for (const Json& entry : list_of(header, "tensors", "the header")) {
      snapshot.tensors.push_back(tensor(entry));
      const std::string& name = snapshot.tensors.back().name;
      if (!names_.insert(name).second) fail("tensor " + in_quotes(name) + " occurs twice");
    }
    const Json& metadata = member(header, "metadata", "the header");
    if (!metadata.is_object()) fail("metadata must be a table of strings");
    for (const auto& [key, value] : metadata.items()) {
      if (!value.is_string()) fail("metadata: the value of " + in_quotes(key) + " must be a string");
      snapshot.metadata[key] = value.get_ref<const std::string&>();
    }
    if (!rest_.empty()) fail(std::to_string(rest_.size()) + " bytes are left over after the last tensor");
    return snapshot;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw Error(source_ + ": " + what); }

  Prefix check_prefix() const {
    Prefix prefix;
    const size_t known = std::min(file_.size(), kMagic.size());
    if (known == 0 || std::memcmp(file_.data(), kMagic.data(), known) != 0) fail("not a state file (it does not begin with BASEDST1)");
    if (file_.size() < sizeof prefix + kChecksumSize)
      fail("truncated at byte " + std::to_string(file_.size()) + ", within the first header");
    std::memcpy(&prefix, file_.data(), sizeof prefix);
    if (prefix.version != kVersion || prefix.zero != 0) {
      fail("state file version " + std::to_string(prefix.version) + "; this program reads version " + std::to_string(kVersion));
    }
    if (prefix.file_size > file_.size()) {
      fail("truncated at byte " + std::to_string(file_.size()) + " of " + std::to_string(prefix.file_size));
    }
    if (prefix.file_size < file_.size()) {
      fail(std::to_string(file_.size() - prefix.file_size) + " bytes after its end at byte " + std::to_string(prefix.file_size));
    }
    Checksum stored;
    std::memcpy(&stored, file_.data() + file_.size() - kChecksumSize, kChecksumSize);
    const Hash128 found = xxh3_128(file_.first(file_.size() - kChecksumSize));
    if (found != Hash128{stored.high, stored.low}) {
      fail("damaged: the checksum is " + found.hex() + ", stored is " + Hash128{stored.high, stored.low}.hex());
    }
    return prefix;
  }

  std::span<const std::byte> take(uint64_t size, const std::string& what) {
    if (size > rest_.size())
      fail(what + " needs " + std::to_string(size) + " bytes, but only " + std::to_string(rest_.size()) + " are left");
    const std::span<const std::byte> taken = rest_.first(size);
    rest_ = rest_.subspan(std::min<uint64_t>(padded(size), rest_.size()));
    return taken;
  }

  void only_keys(const Json& object, std::initializer_list<const char*> known, const std::string& subject) const {
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) fail(subject + ": unknown key " + in_quotes(key));
    }
  }

  const Json& member(const Json& object, const char* key, const std::string& subject) const {
    const auto found = object.find(key);
    if (found == object.end()) fail(subject + " has no " + key);
    return *found;
  }

  std::string text_of(const Json& object, const char* key, const std::string& subject) const {
    const Json& value = member(object, key, subject);
    if (!value.is_string()) fail(subject + ": " + key + " must be a string");
    return value.get<std::string>();
  }

  const Json& list_of(const Json& object, const char* key, const std::string& subject) const {
    const Json& value = member(object, key, subject);
    if (!value.is_array()) fail(subject + ": " + key + " must be a list");
    return value;
  }

  int64_t number_of(const Json& value, const std::string& subject) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      fail(subject + " must be a whole number from 0 to 9223372036854775807");
    }
    return value.get<int64_t>();
  }

  DType dtype_of(const Json& object, const std::string& subject) const {
    const std::string name = text_of(object, "dtype", subject);
    const auto dtype = parse_dtype(name);
    if (!dtype) fail(subject + ": unknown dtype " + in_quotes(name));
    return *dtype;
  }

  std::vector<int64_t> token_ids(const Json& entry) {
    if (!entry.is_object()) fail("tokens must be a table");
    only_keys(entry, {"dtype", "count"}, "tokens");
    const DType dtype = dtype_of(entry, "tokens");
    if (dtype != DType::I32 && dtype != DType::I64) fail(std::string("tokens: dtype must be I32 or I64, not ") + dtype_name(dtype));
    const int64_t count = number_of(member(entry, "count", "tokens"), "tokens: count");
    const auto size = tensor_bytes(dtype, {count});
    if (!size) fail("tokens: count " + std::to_string(count) + " is too large");
    const std::span<const std::byte> bytes = take(static_cast<uint64_t>(*size), "tokens");
    std::vector<int64_t> ids(static_cast<size_t>(count));
    for (size_t i = 0; i < ids.size(); ++i) {
      if (dtype == DType::I64) {
        std::memcpy(&ids[i], bytes.data() + 8 * i, 8);
      } else {
        int32_t id = 0;
        std::memcpy(&id, bytes.data() + 4 * i, 4);
        ids[i] = id;
      }
      if (ids[i] < 0) fail("tokens: id " + std::to_string(ids[i]) + " at place " + std::to_string(i) + " is negative");
    }
    return ids;
  }

  TensorView tensor(const Json& entry) {
    if (!entry.is_object()) fail("tensors: each entry must be a table");
    only_keys(entry, {"name", "dtype", "shape"}, "tensors");
    TensorView view;
    view.name = text_of(entry, "name", "tensors");
    const std::string subject = "tensor " + in_quotes(view.name);
    if (has_control_characters(view.name)) fail(subject + ": control characters in the name");
    view.dtype = dtype_of(entry, subject);
    for (const Json& size : list_of(entry, "shape", subject)) view.shape.push_back(number_of(size, subject + ": a size of its shape"));
    const auto size = tensor_bytes(view.dtype, view.shape);
    if (!size) fail(subject + ": the product of its shape does not fit into 63 bits");
    view.bytes = take(static_cast<uint64_t>(*size), subject);
    return view;
  }

  std::span<const std::byte> file_, rest_;
  const std::string& source_;
  std::set<std::string> names_;
};

Json make_header(const std::string& path, const StateSnapshot& snapshot, DType token_dtype) {
  Json tensors = Json::array();
  std::set<std::string_view> names;
  for (const TensorView& tensor : snapshot.tensors) {
    BASED_ASSERT(tensor_bytes(tensor.dtype, tensor.shape) == static_cast<int64_t>(tensor.bytes.size()));
    const std::string subject = path + ": cannot write tensor " + in_quotes(tensor.name) + ": ";
    if (!is_valid_utf8(tensor.name) || has_control_characters(tensor.name)) throw Error(subject + "the name is not plain text");
    if (!names.insert(tensor.name).second) throw Error(subject + "the name occurs twice");
    tensors.push_back({{"name", tensor.name}, {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}});
  }
  Json metadata = Json::object();
  for (const auto& [key, value] : snapshot.metadata) {
    if (!is_valid_utf8(key) || !is_valid_utf8(value)) throw Error(path + ": cannot write metadata " + in_quotes(key) + ": not UTF-8");
    metadata[key] = value;
  }
  return {{"model", snapshot.model_hash},
          {"tokens", {{"dtype", dtype_name(token_dtype)}, {"count", snapshot.token_ids.size()}}},
          {"tensors", std::move(tensors)},
          {"metadata", std::move(metadata)}};
}

// Sends pieces, each padded to 8 bytes, followed by the checksum of all, to a function.
class Writer {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;

  explicit Writer(Sink sink) : sink_(std::move(sink)) {}

  void write(std::span<const std::byte> bytes) {
    put(bytes);
    put(std::span(kZeros).first(padded(bytes.size()) - bytes.size()));
  }
  void finish() {
    const Hash128 hash = hasher_.digest();
    const Checksum checksum{hash.low, hash.high};
    sink_(std::as_bytes(std::span(&checksum, 1)));
  }

 private:
  void put(std::span<const std::byte> bytes) {
    hasher_.update(bytes);
    sink_(bytes);
  }

  static constexpr std::array<std::byte, 8> kZeros{};
  Sink sink_;
  Hasher128 hasher_;
};

void write_pieces(const std::string& path, const StateSnapshot& snapshot, const Writer::Sink& sink) {
  const std::vector<int64_t>& ids = snapshot.token_ids;
  if (const auto bad = std::find_if(ids.begin(), ids.end(), [](int64_t id) { return id < 0; }); bad != ids.end()) {
    throw Error(path + ": token id " + std::to_string(*bad) + " at place " + std::to_string(bad - ids.begin()) + " is negative");
  }
  const bool small = std::all_of(ids.begin(), ids.end(), [](int64_t id) { return id <= INT32_MAX; });
  const std::vector<int32_t> ids32 = small ? std::vector<int32_t>(ids.begin(), ids.end()) : std::vector<int32_t>();
  const auto tokens = small ? std::as_bytes(std::span(ids32)) : std::as_bytes(std::span(ids));
  std::string header = dump_json(make_header(path, snapshot, small ? DType::I32 : DType::I64));
  header.resize(padded(header.size()), ' ');

  Prefix prefix;
  prefix.header_size = header.size();
  prefix.file_size = sizeof prefix + header.size() + padded(tokens.size()) + kChecksumSize;
  for (const TensorView& tensor : snapshot.tensors) prefix.file_size += padded(tensor.bytes.size());

  Writer writer(sink);
  writer.write(std::as_bytes(std::span(&prefix, 1)));
  writer.write(std::as_bytes(std::span(header)));
  writer.write(tokens);
  for (const TensorView& tensor : snapshot.tensors) writer.write(tensor.bytes);
  writer.finish();
}

}  // namespace

void write_state_file(const std::string& path, const StateSnapshot& snapshot) {
  AtomicFile file(path);
  write_pieces(path, snapshot, [&file](std::span<const std::byte> bytes) { file.write(bytes); });
  file.commit();
}

std::string state_file_content(const StateSnapshot& snapshot, const std::string& name) {
  std::string content;
  write_pieces(name, snapshot,
               [&content](std::span<const std::byte> bytes) { content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); });
  return content;
}

StateSnapshot parse_state_file(std::span<const std::byte> file, const std::string& source) { return StateFileParser(file, source).parse(); }

void require_model(const StateSnapshot& snapshot, const std::string& model_hash, const std::string& source) {
  if (snapshot.model_hash != model_hash)
    throw Error(source + ": made by model " + printable(snapshot.model_hash) + ", not by this one, " + model_hash);
}

StateFile::StateFile(const std::string& path) : file_(path), snapshot_(parse_state_file(file_.bytes(), path)) {}

void StateFile::require_model(const std::string& model_hash) const { based::require_model(snapshot_, model_hash, path()); }

}  // namespace based
