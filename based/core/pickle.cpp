#include "based/core/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <string_view>

#include "based/core/error.h"
#include "based/core/text.h"
#include "based/core/utf8.h"

namespace based {
namespace {

constexpr size_t kMaxText = size_t{1} << 20;
constexpr size_t kMaxArguments = 16;  // a call has at most these; a tensor has no more dimensions

// The value that a callable constructs. Storage classes name the element type of a storage.
enum class Callable : uint8_t { rebuild_tensor, rebuild_parameter, ordered_dict, size, storage_class };

struct KnownCallable {
  std::string_view module, name;
  Callable callable;
  DType dtype = DType::F32;  // element type, if it is a storage class
};
constexpr std::array<KnownCallable, 14> kKnownCallables = {{{"torch._utils", "_rebuild_tensor_v2", Callable::rebuild_tensor},
                                                            {"torch._utils", "_rebuild_parameter", Callable::rebuild_parameter},
                                                            {"collections", "OrderedDict", Callable::ordered_dict},
                                                            {"torch", "Size", Callable::size},
                                                            {"torch", "DoubleStorage", Callable::storage_class, DType::F64},
                                                            {"torch", "FloatStorage", Callable::storage_class, DType::F32},
                                                            {"torch", "HalfStorage", Callable::storage_class, DType::F16},
                                                            {"torch", "BFloat16Storage", Callable::storage_class, DType::BF16},
                                                            {"torch", "LongStorage", Callable::storage_class, DType::I64},
                                                            {"torch", "IntStorage", Callable::storage_class, DType::I32},
                                                            {"torch", "ShortStorage", Callable::storage_class, DType::I16},
                                                            {"torch", "CharStorage", Callable::storage_class, DType::I8},
                                                            {"torch", "ByteStorage", Callable::storage_class, DType::U8},
                                                            {"torch", "BoolStorage", Callable::storage_class, DType::BOOL}}};

// The opcodes that torch.save writes, with Python's names, and those of protocol 4 that have the same meanings.
enum class Op : uint8_t {
  MARK = '(',
  STOP = '.',
  POP = '0',
  POP_MARK = '1',
  DUP = '2',
  BINBYTES = 'B',
  SHORT_BINBYTES = 'C',
  BINFLOAT = 'G',
  BININT = 'J',
  BININT1 = 'K',
  BININT2 = 'M',
  NONE = 'N',
  BINPERSID = 'Q',
  REDUCE = 'R',
  SHORT_BINSTRING = 'U',
  BINUNICODE = 'X',
  EMPTY_LIST = ']',
  APPEND = 'a',
  BUILD = 'b',
  GLOBAL = 'c',
  APPENDS = 'e',
  BINGET = 'h',
  LONG_BINGET = 'j',
  BINPUT = 'q',
  LONG_BINPUT = 'r',
  SETITEM = 's',
  TUPLE = 't',
  SETITEMS = 'u',
  EMPTY_TUPLE = ')',
  EMPTY_DICT = '}',
  PROTO = 0x80,
  TUPLE1 = 0x85,
  TUPLE2 = 0x86,
  TUPLE3 = 0x87,
  NEWTRUE = 0x88,
  NEWFALSE = 0x89,
  LONG1 = 0x8a,
  SHORT_BINUNICODE = 0x8c,
  STACK_GLOBAL = 0x93,
  MEMOIZE = 0x94,
  FRAME = 0x95
};

class PickleParser {
 public:
  PickleParser(std::span<const std::byte> bytes, const std::string& source, uint64_t base) : bytes_(bytes), source_(source), base_(base) {}

  Pickle parse() {
    if (bytes_.size() > kMaxPickleBytes)
      fail("a pickle of " + std::to_string(bytes_.size()) + " bytes, more than the " + std::to_string(kMaxPickleBytes) + " allowed");
    while (!stopped_) {
      opcode_at_ = at_;
      op_ = static_cast<Op>(read<uint8_t>("an opcode"));
      if (!scalar() && !container() && !memo() && !callable()) fail("unknown opcode");
    }
    if (at_ != bytes_.size()) fail(std::to_string(bytes_.size() - at_) + " bytes follow the end of the pickle");
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    std::string opcode;
    if (opcode_at_ < bytes_.size()) {
      const char byte = static_cast<char>(bytes_[opcode_at_]);
      opcode = "opcode " + in_quotes(std::string_view(&byte, 1)) + ": ";
    }
    throw Error(source_ + ": offset " + std::to_string(base_ + opcode_at_) + ": " + opcode + what);
  }

  // --- the bytes

  std::string_view take(uint64_t size, const char* what) {
    if (size > bytes_.size() - at_) fail(std::string(what) + " leaves the pickle: truncated?");
    const std::string_view taken(reinterpret_cast<const char*>(bytes_.data()) + at_, size);
    at_ += size;
    return taken;
  }
  template <class T>
  T read(const char* what) {
    T value{};
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof value);
    return value;
  }
  std::string_view line() {
    const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_, bytes_.size() - at_);
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos || end > kMaxText) fail("a name that does not end");
    at_ += end + 1;
    return rest.substr(0, end);
  }

  // --- values and the stack

  PickleValue& value(uint32_t index) { return pickle_.values[index]; }

  PickleValue& push(PickleKind kind) {
    if (pickle_.values.size() == kMaxPickleValues) fail("more than " + std::to_string(kMaxPickleValues) + " values");
    push_index(static_cast<uint32_t>(pickle_.values.size()));
    pickle_.values.emplace_back();
    pickle_.values.back().kind = kind;
    return pickle_.values.back();
  }
  void push_integer(PickleKind kind, int64_t integer) { push(kind).integer = integer; }
  void push_index(uint32_t index) {
    if (stack_.size() == kMaxPickleValues) fail("the stack has more than " + std::to_string(kMaxPickleValues) + " values");
    stack_.push_back(index);
  }
  // The lowest stack height that opcodes may reach: that of the last mark.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  uint32_t pop() {
    if (stack_.size() == floor()) fail("the stack is empty");
    const uint32_t top = stack_.back();
    stack_.pop_back();
    return top;
  }
  uint32_t top() const {
    if (stack_.size() == floor()) fail("the stack is empty");
    return stack_.back();
  }
  std::vector<uint32_t> pop_to_mark() {
    if (marks_.empty()) fail("there is no mark on the stack");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<uint32_t> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  // Adds items to a container, which must not be an item itself yet: so values stay a tree or share leaves, and their depth is exact.
  void add_items(uint32_t container, const std::vector<uint32_t>& items) {
    if (value(container).is_item) fail("adds to a value that is already part of another one");
    for (const uint32_t item : items) {
      if (item == container) fail("adds a value to itself");
      const int depth = value(item).depth + 1;
      if (depth > kMaxPickleDepth) fail("values are nested deeper than " + std::to_string(kMaxPickleDepth));
      value(item).is_item = true;
      value(container).depth = std::max(value(container).depth, static_cast<uint8_t>(depth));
    }
    auto& list = value(container).items;
    list.insert(list.end(), items.begin(), items.end());
  }
  void push_tuple(const std::vector<uint32_t>& items) {
    push(PickleKind::tuple);
    add_items(stack_.back(), items);
  }
  void push_top_as_tuple(size_t count) {
    std::vector<uint32_t> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push_tuple(items);
  }
  void push_text(PickleKind kind, uint64_t size) {
    if (size > kMaxText) fail("a string of " + std::to_string(size) + " bytes, more than the " + std::to_string(kMaxText) + " allowed");
    const std::string_view text = take(size, "a string");
    if (kind == PickleKind::text && !is_valid_utf8(text)) fail("a string that is not UTF-8");
    push(kind).text = text;
  }

  // --- opcodes; each group returns false for an opcode of the others

  bool scalar() {
    switch (op_) {
      case Op::NONE: push(PickleKind::none); return true;
      case Op::NEWTRUE: push_integer(PickleKind::boolean, 1); return true;
      case Op::NEWFALSE: push_integer(PickleKind::boolean, 0); return true;
      case Op::BININT: push_integer(PickleKind::integer, read<int32_t>("a number")); return true;
      case Op::BININT1: push_integer(PickleKind::integer, read<uint8_t>("a number")); return true;
      case Op::BININT2: push_integer(PickleKind::integer, read<uint16_t>("a number")); return true;
      case Op::LONG1: push_long(); return true;
      case Op::BINFLOAT: push_real(); return true;
      case Op::BINUNICODE: push_text(PickleKind::text, read<uint32_t>("a length")); return true;
      case Op::SHORT_BINUNICODE: push_text(PickleKind::text, read<uint8_t>("a length")); return true;
      case Op::SHORT_BINSTRING: push_text(PickleKind::text, read<uint8_t>("a length")); return true;
      case Op::BINBYTES: push_text(PickleKind::bytes, read<uint32_t>("a length")); return true;
      case Op::SHORT_BINBYTES: push_text(PickleKind::bytes, read<uint8_t>("a length")); return true;
      default: return false;
    }
  }

  bool container() {
    switch (op_) {
      case Op::MARK:
        if (marks_.size() == kMaxPickleDepth) fail("more than " + std::to_string(kMaxPickleDepth) + " marks on the stack");
        marks_.push_back(stack_.size());
        return true;
      case Op::EMPTY_LIST: push(PickleKind::list); return true;
      case Op::EMPTY_DICT: push(PickleKind::dict); return true;
      case Op::EMPTY_TUPLE: push(PickleKind::tuple); return true;
      case Op::TUPLE: push_tuple(pop_to_mark()); return true;
      case Op::TUPLE1: push_top_as_tuple(1); return true;
      case Op::TUPLE2: push_top_as_tuple(2); return true;
      case Op::TUPLE3: push_top_as_tuple(3); return true;
      case Op::APPEND: add_to(PickleKind::list, {pop()}); return true;
      case Op::APPENDS: add_to(PickleKind::list, pop_to_mark()); return true;
      case Op::SETITEM: {
        const uint32_t item = pop(), key = pop();
        add_to(PickleKind::dict, {key, item});
        return true;
      }
      case Op::SETITEMS: add_to(PickleKind::dict, pop_to_mark()); return true;
      default: return false;
    }
  }

  bool memo() {
    switch (op_) {
      case Op::POP: pop(); return true;
      case Op::POP_MARK: pop_to_mark(); return true;
      case Op::DUP: push_index(top()); return true;
      case Op::BINPUT: remember(read<uint8_t>("an index of the memo")); return true;
      case Op::LONG_BINPUT: remember(read<uint32_t>("an index of the memo")); return true;
      case Op::MEMOIZE: remember(memo_.size()); return true;
      case Op::BINGET: recall(read<uint8_t>("an index of the memo")); return true;
      case Op::LONG_BINGET: recall(read<uint32_t>("an index of the memo")); return true;
      case Op::PROTO: require_protocol(read<uint8_t>("a version")); return true;
      case Op::FRAME: read<uint64_t>("a frame's length"); return true;  // buffering only
      case Op::STOP: stop(); return true;
      default: return false;
    }
  }

  bool callable() {
    switch (op_) {
      case Op::GLOBAL: {
        const std::string_view module = line();
        push_callable(module, line());
        return true;
      }
      case Op::STACK_GLOBAL: {
        const uint32_t name = pop(), module = pop();
        require(value(name).kind == PickleKind::text && value(module).kind == PickleKind::text, "a callable's name that is no string");
        push_callable(value(module).text, value(name).text);
        return true;
      }
      case Op::REDUCE: {
        const uint32_t arguments = pop(), function = pop();
        call(function, arguments);
        return true;
      }
      case Op::BINPERSID: push_storage(pop()); return true;
      case Op::BUILD: {
        // An OrderedDict of a module has attributes, its _metadata. They say nothing about the tensors.
        const uint32_t state = pop();
        require(value(top()).kind == PickleKind::dict && value(state).kind == PickleKind::dict, "attributes of something that is no dict");
        return true;
      }
      default: return false;
    }
  }

  // --- effects of the opcodes

  void require(bool condition, const char* what) const {
    if (!condition) fail(what);
  }
  void require_protocol(int version) const {
    if (version < 2 || version > 5) fail("protocol " + std::to_string(version) + "; 2 to 5 are known");
  }

  void push_long() {
    const std::string_view digits = take(read<uint8_t>("a length"), "a number");
    if (digits.size() > sizeof(int64_t)) fail("an integer of " + std::to_string(digits.size()) + " bytes, more than 8");
    const bool negative = !digits.empty() && (static_cast<unsigned char>(digits.back()) & 0x80) != 0;
    int64_t number = negative ? -1 : 0;
    std::memcpy(&number, digits.data(), digits.size());
    push_integer(PickleKind::integer, number);
  }

  void push_real() {
    const auto big_endian = read<uint64_t>("a number");
    push(PickleKind::real).real = std::bit_cast<double>(__builtin_bswap64(big_endian));
  }

  void add_to(PickleKind kind, const std::vector<uint32_t>& items) {
    const uint32_t container = top();
    if (value(container).kind != kind)
      fail(std::string("adds to ") + pickle_kind_name(value(container).kind) + " as to " + pickle_kind_name(kind));
    if (kind == PickleKind::dict && items.size() % 2 != 0) fail("a key without a value");
    add_items(container, items);
  }

  void remember(size_t index) {
    if (index >= kMaxPickleValues)
      fail("index " + std::to_string(index) + " of the memo, which has at most " + std::to_string(kMaxPickleValues));
    const uint32_t remembered = top();
    if (index >= memo_.size()) memo_.resize(index + 1, kNothing);
    memo_[index] = remembered;
  }
  void recall(size_t index) {
    if (index >= memo_.size() || memo_[index] == kNothing) fail("index " + std::to_string(index) + " of the memo was never stored");
    push_index(memo_[index]);
  }

  void stop() {
    stopped_ = true;
    if (!marks_.empty() || stack_.size() != 1)
      fail("the pickle ends with " + std::to_string(stack_.size()) + " values on the stack, not with one");
    pickle_.root = stack_.back();
  }

  void push_callable(std::string_view module, std::string_view name) {
    const auto known = std::find_if(kKnownCallables.begin(), kKnownCallables.end(),
                                    [&](const KnownCallable& each) { return each.module == module && each.name == name; });
    if (known == kKnownCallables.end())
      fail("the pickle names " + in_quotes(std::string(module) + "." + std::string(name)) +
           ", which is no tensor, string, number or container; nothing is executed");
    push_integer(PickleKind::callable, known - kKnownCallables.begin());
  }

  void call(uint32_t function, uint32_t arguments) {
    require(value(function).kind == PickleKind::callable, "a call of something that is no function");
    const KnownCallable& known = kKnownCallables[static_cast<size_t>(value(function).integer)];
    const std::vector<uint32_t> items = arguments_of(arguments, "arguments of a call");
    switch (known.callable) {
      case Callable::rebuild_tensor: return push_tensor(items);
      case Callable::rebuild_parameter:
        require(!items.empty() && value(items[0]).kind == PickleKind::tensor, "a parameter that is no tensor");
        return push_index(items[0]);
      case Callable::ordered_dict:
        require(items.empty(), "an OrderedDict with arguments");
        push(PickleKind::dict);
        return;
      case Callable::size:
        require(items.size() == 1 && value(items[0]).kind == PickleKind::tuple, "a torch.Size that is not made of a tuple");
        return push_index(items[0]);
      case Callable::storage_class: fail("a call of a storage class");
    }
  }

  // The items of a short tuple: a copy, since new values move the old ones.
  std::vector<uint32_t> arguments_of(uint32_t index, const char* what) {
    if (value(index).kind != PickleKind::tuple) fail(std::string(what) + ": " + pickle_kind_name(value(index).kind) + " is no tuple");
    if (value(index).items.size() > kMaxArguments)
      fail(std::string(what) + ": a tuple of " + std::to_string(value(index).items.size()) + " values, more than " +
           std::to_string(kMaxArguments));
    return value(index).items;
  }
  int64_t integer_of(uint32_t index, const char* what) {
    if (value(index).kind != PickleKind::integer || value(index).integer < 0) fail(std::string(what) + " is no number of at least 0");
    return value(index).integer;
  }

  // ('storage', class, key, location, elements); an older version adds None.
  void push_storage(uint32_t id) {
    const std::vector<uint32_t> items = arguments_of(id, "a persistent id");
    require(items.size() == 5 || (items.size() == 6 && value(items[5]).kind == PickleKind::none),
            "a persistent id of another form than ('storage', class, key, location, elements)");
    require(value(items[0]).kind == PickleKind::text && value(items[0]).text == "storage", "a persistent id that is no storage's");
    const PickleValue& type = value(items[1]);
    require(type.kind == PickleKind::callable, "a storage without a class");
    const KnownCallable& known = kKnownCallables[static_cast<size_t>(type.integer)];
    require(known.callable == Callable::storage_class, "a storage without a class");
    require(value(items[2]).kind == PickleKind::text && value(items[3]).kind == PickleKind::text, "a storage without a key or a location");
    const PickleStorage storage{known.dtype, value(items[2]).text, value(items[3]).text, integer_of(items[4], "a storage's size")};
    if (storage.elements > std::numeric_limits<int64_t>::max() / dtype_bytes(storage.dtype))
      fail("storage " + in_quotes(storage.key) + " of " + std::to_string(storage.elements) + " elements, whose bytes overflow");
    const auto [known_at, is_new] = storage_of_key_.try_emplace(storage.key, pickle_.storages.size());
    if (is_new) {
      pickle_.storages.push_back(storage);
    } else {
      const PickleStorage& first = pickle_.storages[known_at->second];
      if (first.dtype != storage.dtype || first.elements != storage.elements)
        fail("storage " + in_quotes(storage.key) + " has two types or sizes");
    }
    push_integer(PickleKind::storage, static_cast<int64_t>(known_at->second));
  }

  // _rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, backward_hooks[, metadata])
  void push_tensor(const std::vector<uint32_t>& items) {
    require(items.size() == 6 || items.size() == 7, "a tensor with another number of arguments than 6 or 7");
    require(value(items[0]).kind == PickleKind::storage, "a tensor without a storage");
    PickleTensor tensor;
    tensor.storage = static_cast<size_t>(value(items[0]).integer);
    tensor.offset = integer_of(items[1], "a tensor's offset");
    tensor.shape = numbers_of(items[2], "a tensor's shape");
    tensor.strides = numbers_of(items[3], "a tensor's strides");
    if (tensor.shape.size() != tensor.strides.size()) fail("a tensor with another number of strides than dimensions");
    check_view(tensor);
    if (items.size() == 7) tensor.unresolved = unresolved_of(value(items[6]));
    push_integer(PickleKind::tensor, static_cast<int64_t>(pickle_.tensors.size()));
    pickle_.tensors.push_back(std::move(tensor));
  }

  // The metadata of a tensor are None or a dict of flags. "neg" or "conj" if this flag is set, otherwise null. Other flags do not change
  // the numbers.
  const char* unresolved_of(const PickleValue& metadata) const {
    if (metadata.kind == PickleKind::none) return nullptr;
    require(metadata.kind == PickleKind::dict, "a tensor's metadata that are no dict");
    for (size_t i = 0; i + 1 < metadata.items.size(); i += 2) {
      const PickleValue &key = pickle_.values[metadata.items[i]], &flag = pickle_.values[metadata.items[i + 1]];
      if (key.kind != PickleKind::text) continue;
      for (const char* name : {"neg", "conj"}) {
        if (key.text != name) continue;
        require(flag.kind == PickleKind::boolean, "a tensor's metadata with a 'neg' or 'conj' that is no boolean");
        if (flag.integer != 0) return name;
      }
    }
    return nullptr;
  }

  std::vector<int64_t> numbers_of(uint32_t index, const char* what) {
    const std::vector<uint32_t> items = arguments_of(index, what);
    std::vector<int64_t> numbers;
    numbers.reserve(items.size());
    for (const uint32_t item : items) numbers.push_back(integer_of(item, what));
    return numbers;
  }

  // Checks that the view is inside its storage and that no two of its elements are the same. In the order of growing strides, each stride
  // must pass over all elements of the dimensions before it; torch makes views of no other kind but by expand() and as_strided().
  void check_view(const PickleTensor& tensor) const {
    const PickleStorage& storage = pickle_.storages[tensor.storage];
    const std::string subject = "a tensor of storage " + in_quotes(storage.key) + ": ";
    std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
    bool empty = false;
    dimensions.reserve(tensor.shape.size());
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      empty = empty || tensor.shape[i] == 0;
      if (tensor.shape[i] != 1) dimensions.emplace_back(tensor.strides[i], tensor.shape[i]);
    }
    if (!tensor_bytes(storage.dtype, tensor.shape)) fail(subject + "the product of its shape overflows");
    if (tensor.offset > storage.elements) fail(subject + "it begins after the storage's end");
    if (empty) return;
    std::sort(dimensions.begin(), dimensions.end());
    int64_t extent = 1;  // elements from the first to the last of the dimensions so far
    for (const auto& [stride, size] : dimensions) {
      if (stride < extent) fail(subject + "its strides use elements more than once");
      int64_t steps = 0;
      if (__builtin_mul_overflow(stride, size - 1, &steps) || __builtin_add_overflow(extent, steps, &extent))
        fail(subject + "its strides overflow");
    }
    if (extent > storage.elements - tensor.offset)
      fail(subject + "it needs " + std::to_string(extent) + " elements from " + std::to_string(tensor.offset) + " on, the storage has " +
           std::to_string(storage.elements));
  }

  static constexpr uint32_t kNothing = std::numeric_limits<uint32_t>::max();

  std::span<const std::byte> bytes_;
  const std::string& source_;
  uint64_t base_;
  size_t at_ = 0, opcode_at_ = 0;
  Op op_ = Op::STOP;
  bool stopped_ = false;
  Pickle pickle_;
  std::vector<uint32_t> stack_, memo_;
  std::vector<size_t> marks_;  // heights of the stack
  std::map<std::string, size_t> storage_of_key_;
};

}  // namespace

const char* pickle_kind_name(PickleKind kind) {
  static constexpr std::array<const char*, 12> names = {"None",   "a boolean", "an integer", "a number", "a string",  "bytes",
                                                        "a list", "a tuple",   "a dict",     "a tensor", "a storage", "a function"};
  return names[static_cast<size_t>(kind)];
}

Pickle parse_pickle(std::span<const std::byte> bytes, const std::string& source, uint64_t base) {
  return PickleParser(bytes, source, base).parse();
}

}  // namespace based
