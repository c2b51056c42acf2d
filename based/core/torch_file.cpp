#include "based/core/torch_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "based/core/error.h"
#include "based/core/pickle.h"
#include "based/core/text.h"
#include "based/core/zip.h"

namespace based {
namespace {

constexpr const char* kPickleMember = "/data.pkl";

class TorchFileParser {
 public:
  TorchFileParser(std::span<const std::byte> file, const std::string& source, bool check_sums)
      : file_(file), source_(source), check_sums_(check_sums) {}

  TorchIndex parse() {
    refuse_lfs_pointer(file_, source_);
    refuse_legacy();
    for (ZipMember& member : parse_zip(file_, source_)) members_.emplace(member.name, std::move(member));
    const ZipMember& pickle = find_pickle();
    folder_ = pickle.name.substr(0, pickle.name.size() - std::strlen(kPickleMember) + 1);
    if (const ZipMember* order = find("byteorder"); order != nullptr && as_text(order->bytes) != "little")
      fail(order->offset, "the byte order is " + in_quotes(as_text(order->bytes)) + "; only 'little' is read");
    if (check_sums_) check_crc(pickle, source_);
    pickle_ = parse_pickle(pickle.bytes, source_, pickle.offset);
    pickle_offset_ = pickle.offset;
    for (const PickleStorage& storage : pickle_.storages) storages_.push_back(storage_bytes(storage));
    tensors_of_storage_.resize(storages_.size());
    for (const PickleTensor& tensor : pickle_.tensors) ++tensors_of_storage_[tensor.storage];
    const std::vector<uint32_t>& entries = tensor_entries();
    for (size_t i = 0; i + 1 < entries.size(); i += 2) add_entry(pickle_.values[entries[i]], pickle_.values[entries[i + 1]]);
    check_shared();
    return std::move(index_);
  }

 private:
  [[noreturn]] void fail(uint64_t offset, const std::string& what) const {
    throw Error(source_ + ": offset " + std::to_string(offset) + ": " + what);
  }
  static std::string_view as_text(std::span<const std::byte> bytes) {
    return bytes.empty() ? std::string_view() : std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  // Files of torch before 1.6 begin with a pickle of a magic number.
  void refuse_legacy() const {
    if (file_.size() > 2 && file_[0] == std::byte{0x80})
      throw Error(source_ + ": a bare pickle, as torch wrote before version 1.6; load it there and save it again");
  }

  const ZipMember& find_pickle() const {
    const ZipMember* found = nullptr;
    for (const auto& [name, member] : members_) {
      if (!name.ends_with(kPickleMember)) continue;
      if (found != nullptr) fail(member.offset, "two pickles, " + in_quotes(found->name) + " and " + in_quotes(name));
      found = &member;
    }
    if (found == nullptr) throw Error(source_ + ": a zip archive without a member data.pkl is no file of torch.save");
    return *found;
  }
  const ZipMember* find(const std::string& name) const {
    const auto found = members_.find(folder_ + name);
    return found == members_.end() ? nullptr : &found->second;
  }

  std::span<const std::byte> storage_bytes(const PickleStorage& storage) const {
    const ZipMember* member = find("data/" + storage.key);
    if (member == nullptr) fail(pickle_offset_, "the archive has no member for storage " + in_quotes(storage.key));
    const auto bytes = static_cast<uint64_t>(storage.elements * dtype_bytes(storage.dtype));
    if (member->bytes.size() != bytes)
      fail(member->offset, "storage " + in_quotes(storage.key) + " has " + std::to_string(member->bytes.size()) + " bytes, and its " +
                               std::to_string(storage.elements) + " elements of " + dtype_name(storage.dtype) + " need " +
                               std::to_string(bytes));
    if (check_sums_) check_crc(*member, source_);
    return member->bytes;
  }

  // The keys and values of the dict of tensors.
  const std::vector<uint32_t>& tensor_entries() {
    const PickleValue* root = &pickle_.values[pickle_.root];
    if (root->kind != PickleKind::dict)
      fail(pickle_offset_, std::string("the file holds ") + pickle_kind_name(root->kind) + ", not a dict of tensors");
    for (size_t i = 0; i + 1 < root->items.size(); i += 2) {
      const PickleValue &key = pickle_.values[root->items[i]], &inner = pickle_.values[root->items[i + 1]];
      if (key.kind != PickleKind::text || key.text != "state_dict" || inner.kind != PickleKind::dict) continue;
      for (size_t other = 0; other + 1 < root->items.size(); other += 2)
        if (other != i) index_.other_entries.push_back(key_text(pickle_.values[root->items[other]]));
      return inner.items;
    }
    require_tensors_in(*root);
    return root->items;
  }

  static bool is_dict_of_tensors(const Pickle& pickle, const PickleValue& dict) {
    for (size_t i = 1; i < dict.items.size(); i += 2)
      if (pickle.values[dict.items[i]].kind == PickleKind::tensor) return dict.kind == PickleKind::dict;
    return false;
  }

  // Trainers have other names than "state_dict" for the dict of tensors.
  void require_tensors_in(const PickleValue& root) const {
    if (is_dict_of_tensors(pickle_, root)) return;
    for (size_t i = 0; i + 1 < root.items.size(); i += 2) {
      if (!is_dict_of_tensors(pickle_, pickle_.values[root.items[i + 1]])) continue;
      const std::string name = in_quotes(key_text(pickle_.values[root.items[i]]), 200);
      fail(pickle_offset_, "the tensors are below the entry " + name +
                               "; save this entry by itself, in Python torch.save(torch.load(FILE)[" + name + "], FILE)");
    }
  }

  std::string key_text(const PickleValue& key) const {
    if (key.kind != PickleKind::text)
      fail(pickle_offset_, std::string("a dict of tensors with ") + pickle_kind_name(key.kind) + " as a key");
    return key.text;
  }

  void add_entry(const PickleValue& key, const PickleValue& entry) {
    const std::string name = key_text(key);
    if (!names_.insert(name).second) fail(pickle_offset_, "the name " + in_quotes(name) + " occurs twice");
    if (entry.kind != PickleKind::tensor) {
      index_.other_entries.push_back(name);
      return;
    }
    const PickleTensor& tensor = pickle_.tensors[static_cast<size_t>(entry.integer)];
    if (tensor.unresolved != nullptr)
      fail(pickle_offset_, "tensor " + in_quotes(name) + " has the flag '" + tensor.unresolved +
                               "', so its values are not those of its storage; " + "save tensor.resolve_" + tensor.unresolved +
                               "() in its place");
    const PickleStorage& storage = pickle_.storages[tensor.storage];
    const int64_t bytes = *tensor_bytes(storage.dtype, tensor.shape), size = dtype_bytes(storage.dtype);
    const std::span<const std::byte> all = storages_[tensor.storage];
    const bool dense = is_dense(tensor);
    if (!dense) require_unshared(tensor, name);
    const std::span<const std::byte> view =
        dense ? all.subspan(static_cast<size_t>(tensor.offset * size), static_cast<size_t>(bytes)) : gathered(tensor, all, size, bytes);
    index_.tensors.push_back({name, storage.dtype, tensor.shape, view});
    if (dense) uses_.push_back({view, index_.tensors.size() - 1});
  }

  static bool is_dense(const PickleTensor& tensor) {
    int64_t expected = 1;
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      if (tensor.shape[i] == 0) return true;
      if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
      expected *= tensor.shape[i];
    }
    return true;
  }

  // A storage of which one tensor is a view with gaps or transposed is used by no other tensor: so all copies together are not larger than
  // the file.
  void require_unshared(const PickleTensor& tensor, const std::string& name) const {
    if (tensors_of_storage_[tensor.storage] > 1) fail(pickle_offset_, "tensor " + in_quotes(name) + " is not dense and shares its storage");
  }

  std::span<const std::byte> gathered(const PickleTensor& tensor, std::span<const std::byte> all, int64_t size, int64_t bytes) {
    std::vector<std::byte>& copy = index_.dense.emplace_back(static_cast<size_t>(bytes));
    std::vector<int64_t> at(tensor.shape.size(), 0);
    int64_t element = tensor.offset;
    for (int64_t written = 0; written < bytes; written += size) {
      std::memcpy(copy.data() + written, all.data() + element * size, static_cast<size_t>(size));
      for (size_t i = at.size(); i-- > 0;) {
        element += tensor.strides[i];
        if (++at[i] < tensor.shape[i]) break;
        element -= tensor.strides[i] * tensor.shape[i];
        at[i] = 0;
      }
    }
    return copy;
  }

  // Tied tensors are views of exactly the same bytes. Other tensors share none.
  void check_shared() {
    std::erase_if(uses_, [](const Use& use) { return use.bytes.empty(); });
    std::sort(uses_.begin(), uses_.end(), [](const Use& a, const Use& b) {
      return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
    });
    for (size_t i = 1; i < uses_.size(); ++i) {
      const Use &a = uses_[i - 1], &b = uses_[i];
      const bool same = a.bytes.data() == b.bytes.data() && a.bytes.size() == b.bytes.size();
      if (!same && b.bytes.data() < a.bytes.data() + a.bytes.size())
        fail(static_cast<uint64_t>(b.bytes.data() - file_.data()), "tensors " + in_quotes(index_.tensors[a.tensor].name) + " and " +
                                                                       in_quotes(index_.tensors[b.tensor].name) +
                                                                       " share a part of their bytes");
    }
  }

  struct Use {
    std::span<const std::byte> bytes;
    size_t tensor;
  };

  std::span<const std::byte> file_;
  const std::string& source_;
  bool check_sums_;
  std::map<std::string, ZipMember> members_;
  std::string folder_;  // the archive's folder, with a slash
  Pickle pickle_;
  uint64_t pickle_offset_ = 0;
  std::vector<std::span<const std::byte>> storages_;
  std::vector<size_t> tensors_of_storage_;
  std::set<std::string> names_;
  std::vector<Use> uses_;
  TorchIndex index_;
};

// Writes pickles of protocol 2.
class PickleWriter {
 public:
  void op(char opcode) { text_ += opcode; }
  void text(const std::string& text) {
    op('X');
    raw(static_cast<uint32_t>(text.size()));
    text_ += text;
  }
  void integer(int64_t number) {
    if (number >= INT32_MIN && number <= INT32_MAX) {
      op('J');
      raw(static_cast<int32_t>(number));
    } else {
      text_ += "\x8a\x08";
      raw(number);
    }
  }
  void global(const char* module, const std::string& name) { text_ += "c" + std::string(module) + "\n" + name + "\n"; }
  void tuple(const std::vector<int64_t>& numbers) {
    op('(');
    for (const int64_t number : numbers) integer(number);
    op('t');
  }
  std::string& result() { return text_; }

 private:
  template <class T>
  void raw(T number) {
    text_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  std::string text_;
};

const char* storage_class(DType dtype) {
  switch (dtype) {
    case DType::F64: return "DoubleStorage";
    case DType::I64: return "LongStorage";
    case DType::F32: return "FloatStorage";
    case DType::I32: return "IntStorage";
    case DType::BF16: return "BFloat16Storage";
    case DType::F16: return "HalfStorage";
    case DType::I16: return "ShortStorage";
    case DType::I8: return "CharStorage";
    case DType::U8: return "ByteStorage";
    case DType::BOOL: return "BoolStorage";
  }
  return "";
}

void write_tensor(PickleWriter& pickle, const TensorView& tensor, size_t storage) {
  const int64_t elements = static_cast<int64_t>(tensor.bytes.size()) / dtype_bytes(tensor.dtype);
  std::vector<int64_t> strides(tensor.shape.size(), 1);
  for (size_t i = tensor.shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(tensor.shape[i], 1);
  pickle.text(tensor.name);
  pickle.global("torch._utils", "_rebuild_tensor_v2");
  pickle.op('(');
  pickle.op('(');
  pickle.text("storage");
  pickle.global("torch", storage_class(tensor.dtype));
  pickle.text(std::to_string(storage));
  pickle.text("cpu");
  pickle.integer(elements);
  pickle.op('t');
  pickle.op('Q');
  pickle.integer(0);
  pickle.tuple(tensor.shape);
  pickle.tuple(strides);
  pickle.op('\x89');  // needs no gradient
  pickle.global("collections", "OrderedDict");
  pickle.op(')');
  pickle.op('R');
  pickle.op('t');
  pickle.op('R');
}

}  // namespace

TorchIndex parse_torch_file(std::span<const std::byte> file, const std::string& source, bool check_sums) {
  return TorchFileParser(file, source, check_sums).parse();
}

void write_torch_file(const std::string& path, const std::vector<TensorView>& tensors) {
  PickleWriter pickle;
  std::vector<std::span<const std::byte>> storages;
  std::map<std::pair<const std::byte*, DType>, size_t> storage_of;
  pickle.result() = "\x80\x02}(";
  for (const TensorView& tensor : tensors) {
    const auto [known, is_new] = storage_of.try_emplace({tensor.bytes.data(), tensor.dtype}, storages.size());
    if (is_new || tensor.bytes.empty() || storages[known->second].size() != tensor.bytes.size()) {
      known->second = storages.size();
      storages.push_back(tensor.bytes);
    }
    write_tensor(pickle, tensor, known->second);
  }
  pickle.result() += "u.";
  const std::string folder = std::filesystem::path(path).stem().string() + "/";
  ZipWriter zip(path);
  zip.add(folder + "data.pkl", pickle.result());
  zip.add(folder + "byteorder", std::string_view("little"));
  for (size_t i = 0; i < storages.size(); ++i) zip.add(folder + "data/" + std::to_string(i), storages[i]);
  zip.add(folder + "version", std::string_view("3\n"));
  zip.commit();
}

}  // namespace based
