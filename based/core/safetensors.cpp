#include "based/core/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "based/core/json.h"
#include "based/core/text.h"
#include "based/core/utf8.h"

namespace based {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and tensors are used in place");

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

class SafetensorsParser {
 public:
  SafetensorsParser(std::span<const std::byte> file, const std::string& source) : file_(file), source_(source) {}

  SafetensorsIndex parse() {
    const Json header = parse_json(header_text(), source_ + ": header");
    SafetensorsIndex index;
    for (const auto& [name, entry] : header.items()) {
      if (name == kMetadata) {
        index.metadata = metadata(entry);
      } else {
        index.tensors.push_back(tensor(name, entry));
      }
    }
    check_contiguous(index.tensors);
    return index;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw Error(source_ + ": " + what); }
  [[noreturn]] void fail(const std::string& name, const std::string& what) const { fail("tensor " + in_quotes(name) + ": " + what); }

  std::string_view header_text() {
    const std::string size = std::to_string(file_.size());
    if (file_.size() < 8) fail("not a safetensors file: " + size + " bytes, and the header's length alone takes 8");
    uint64_t length = 0;
    std::memcpy(&length, file_.data(), sizeof length);
    const std::string says = "the header's length is given as " + std::to_string(length);
    if (length > kMaxHeader) fail(says + ", more than the 100000000 allowed; this may be no safetensors file");
    if (length > file_.size() - 8) fail(says + ", but the file has only " + size + " bytes: truncated?");
    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + 8, length);
    if (!text.starts_with('{')) fail("the header does not begin with '{'; this may be no safetensors file");
    const size_t last = text.find_last_not_of(' ');
    if (text[last] != '}') {
      fail("the header ends in byte " + in_quotes(text.substr(last, 1)) + "; only spaces may follow its closing '}'");
    }
    data_ = file_.subspan(8 + length);
    return text.substr(0, last + 1);
  }

  std::map<std::string, std::string> metadata(const Json& entry) const {
    if (!entry.is_object()) fail("__metadata__ must be a table of strings");
    std::map<std::string, std::string> out;
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) fail("__metadata__: the value of " + in_quotes(key) + " must be a string");
      out[key] = value.get_ref<const std::string&>();
    }
    return out;
  }

  TensorView tensor(const std::string& name, const Json& entry) const {
    if (has_control_characters(name)) fail(name, "control characters in the name");
    if (!entry.is_object()) fail(name, "its entry must be a table");
    for (const auto& [key, value] : entry.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") fail(name, "unknown key " + in_quotes(key));
    }
    TensorView view{name, dtype(name, entry), {}, {}};
    for (const uint64_t size : numbers(name, entry, "shape")) {
      if (size > static_cast<uint64_t>(INT64_MAX)) fail(name, "the shape's " + std::to_string(size) + " does not fit into 63 bits");
      view.shape.push_back(static_cast<int64_t>(size));
    }
    const std::optional<int64_t> bytes = tensor_bytes(view.dtype, view.shape);
    if (!bytes) fail(name, "the product of its shape does not fit into 63 bits");
    const std::vector<uint64_t> offsets = numbers(name, entry, "data_offsets");
    if (offsets.size() != 2) fail(name, "data_offsets must be two numbers");
    const uint64_t begin = offsets[0], end = offsets[1];
    const std::string range = "data_offsets " + std::to_string(begin) + " to " + std::to_string(end);
    if (begin > end) fail(name, range + ": they run backwards");
    if (end > data_.size()) fail(name, range + " leave the " + std::to_string(data_.size()) + " bytes of data: truncated?");
    if (end - begin != static_cast<uint64_t>(*bytes)) {
      fail(name, range + ", but its shape and dtype " + dtype_name(view.dtype) + " need " + std::to_string(*bytes) + " bytes");
    }
    view.bytes = data_.subspan(begin, end - begin);
    return view;
  }

  const Json& member(const std::string& name, const Json& entry, const char* key) const {
    const auto found = entry.find(key);
    if (found == entry.end()) fail(name, std::string("has no ") + key);
    return *found;
  }

  DType dtype(const std::string& name, const Json& entry) const {
    const Json& value = member(name, entry, "dtype");
    if (!value.is_string()) fail(name, "dtype must be a string");
    const auto dtype = parse_dtype(value.get_ref<const std::string&>());
    if (!dtype) {
      std::string known;
      for (int i = 0; i < kDTypes; ++i) known += std::string(i ? ", " : "") + dtype_name(static_cast<DType>(i));
      fail(name, "dtype " + in_quotes(value.get_ref<const std::string&>()) + " is not supported (" + known + " are)");
    }
    return *dtype;
  }

  std::vector<uint64_t> numbers(const std::string& name, const Json& entry, const char* key) const {
    const Json& list = member(name, entry, key);
    if (!list.is_array()) fail(name, std::string(key) + " must be a list");
    std::vector<uint64_t> out;
    for (const Json& item : list) {
      if (!item.is_number_unsigned()) fail(name, std::string(key) + " must hold whole numbers from 0 to 18446744073709551615");
      out.push_back(item.get<uint64_t>());
    }
    return out;
  }

  // Every byte belongs to exactly one tensor.
  void check_contiguous(std::vector<TensorView>& tensors) const {
    std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
      return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
    });
    size_t reached = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto begin = static_cast<size_t>(tensors[i].bytes.data() - data_.data());
      if (begin < reached) {
        fail(tensors[i].name, "its bytes from " + std::to_string(begin) + " overlap those of tensor " + in_quotes(tensors[i - 1].name));
      }
      if (begin > reached) fail("bytes " + std::to_string(reached) + " to " + std::to_string(begin) + " of the data belong to no tensor");
      reached = begin + tensors[i].bytes.size();
    }
    if (reached != data_.size()) fail(std::to_string(data_.size() - reached) + " bytes after the last tensor belong to no tensor");
  }

  std::span<const std::byte> file_, data_;
  const std::string& source_;
};

void check_writable_name(const std::string& path, const std::string& name) {
  const std::string subject = path + ": cannot write tensor " + in_quotes(name) + ": ";
  if (name == kMetadata) throw Error(subject + "the format keeps this name for itself");
  if (has_control_characters(name)) throw Error(subject + "control characters in the name");
  if (!is_valid_utf8(name)) throw Error(subject + "the name is not UTF-8");
}

std::string make_header(const std::string& path, const std::vector<TensorView>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  Json entries = Json::object();
  auto& members = static_cast<std::vector<Json::object_t::value_type>&>(entries.get_ref<Json::object_t&>());
  if (!metadata.empty()) {
    Json strings = Json::object();
    for (const auto& [key, value] : metadata) {
      if (!is_valid_utf8(key) || !is_valid_utf8(value)) throw Error(path + ": cannot write metadata " + in_quotes(key) + ": not UTF-8");
      strings[key] = value;
    }
    members.emplace_back(kMetadata, std::move(strings));
  }
  std::set<std::string_view> names;
  uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    check_writable_name(path, tensor.name);
    if (!names.insert(tensor.name).second) throw Error(path + ": cannot write tensor " + in_quotes(tensor.name) + " twice");
    BASED_ASSERT(tensor_bytes(tensor.dtype, tensor.shape) == static_cast<int64_t>(tensor.bytes.size()));
    const uint64_t end = offset + tensor.bytes.size();
    members.emplace_back(tensor.name, Json{{"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = dump_json(entries);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeader) throw Error(path + ": the header would take more than the 100000000 bytes that the format allows");
  return text;
}

template <class Bits>
std::optional<int64_t> first_with_all_ones(std::span<const std::byte> bytes, Bits exponent) {
  for (size_t i = 0; i + sizeof(Bits) <= bytes.size(); i += sizeof(Bits)) {
    Bits bits = 0;
    std::memcpy(&bits, bytes.data() + i, sizeof bits);
    if ((bits & exponent) == exponent) return static_cast<int64_t>(i / sizeof(Bits));
  }
  return std::nullopt;
}

}  // namespace

SafetensorsIndex parse_safetensors(std::span<const std::byte> file, const std::string& source) {
  refuse_lfs_pointer(file, source);
  return SafetensorsParser(file, source).parse();
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path), index_(parse_safetensors(file_.bytes(), path)) {
  for (size_t i = 0; i < index_.tensors.size(); ++i) by_name_.emplace(index_.tensors[i].name, i);
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &index_.tensors[found->second];
}

const TensorView& SafetensorsFile::at(std::string_view name) const {
  const TensorView* found = find(name);
  if (found == nullptr) throw Error(path() + ": has no tensor " + in_quotes(name));
  return *found;
}

const std::string& SafetensorsFile::metadata_at(const std::string& key) const {
  const auto found = index_.metadata.find(key);
  if (found == index_.metadata.end()) throw Error(path() + ": has no metadata " + in_quotes(key));
  return found->second;
}

void write_safetensors(const std::string& path, std::vector<TensorView> tensors, const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorView& a, const TensorView& b) { return std::tie(a.dtype, a.name) < std::tie(b.dtype, b.name); });
  const std::string header = make_header(path, tensors, metadata);
  const uint64_t length = header.size();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const TensorView& tensor : tensors) file.write(tensor.bytes);
  file.commit();
}

std::optional<int64_t> first_not_finite(const TensorView& tensor) {
  switch (tensor.dtype) {
    case DType::F64: return first_with_all_ones<uint64_t>(tensor.bytes, 0x7ff0000000000000u);
    case DType::F32: return first_with_all_ones<uint32_t>(tensor.bytes, 0x7f800000u);
    case DType::BF16: return first_with_all_ones<uint16_t>(tensor.bytes, 0x7f80u);
    case DType::F16: return first_with_all_ones<uint16_t>(tensor.bytes, 0x7c00u);
    default: return std::nullopt;
  }
}

}  // namespace based
