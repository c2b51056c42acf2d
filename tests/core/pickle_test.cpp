#include "based/core/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/pickles.h"

namespace based {
namespace pickle_test {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Pickle parse(const std::string& bytes) { return parse_pickle(std::as_bytes(std::span(bytes)), "m.bin", 100); }
std::string error_of(const std::string& bytes) {
  return message_of<Error>([&] { parse(bytes); });
}
std::string tensor_error(const PickledTensor& tensor) { return error_of(pickle_of(tensor.bytes())); }

TEST(Pickle, ReadsNumbersStringsAndContainers) {
  const Pickle pickle = parse(pickle_of("](" + pickled_number(-3) + "K\x07" + "M\x01\x02" + std::string("\x8a\x02\x00\x80", 4) + "\x88" +
                                        "N" + std::string("G\x3f\xf8\0\0\0\0\0\0", 9) + "U\x02hi" + pickled_tuple({1, 2}) + "}e"));
  const PickleValue& list = pickle.values[pickle.root];
  ASSERT_EQ(list.kind, PickleKind::list);
  ASSERT_EQ(list.items.size(), 10U);
  const auto item = [&](size_t i) { return pickle.values[list.items[i]]; };
  EXPECT_EQ(item(0).integer, -3);
  EXPECT_EQ(item(1).integer, 7);
  EXPECT_EQ(item(2).integer, 0x201);
  EXPECT_EQ(item(3).integer, -32768);
  EXPECT_EQ(item(4).kind, PickleKind::boolean);
  EXPECT_EQ(item(5).kind, PickleKind::none);
  EXPECT_EQ(item(6).real, 1.5);
  EXPECT_EQ(item(7).text, "hi");
  EXPECT_EQ(item(8).items.size(), 2U);
  EXPECT_EQ(item(9).kind, PickleKind::dict);
  EXPECT_EQ(list.depth, 2);
}

TEST(Pickle, ReadsTensors) {
  const Pickle pickle = parse(
      pickle_of(pickled_dict({{"a", PickledTensor{}.bytes()}, {"b", PickledTensor{.offset = 3, .shape = {3}, .strides = {1}}.bytes()}})));
  ASSERT_EQ(pickle.tensors.size(), 2U);
  ASSERT_EQ(pickle.storages.size(), 1U) << "one key, one storage";
  EXPECT_EQ(pickle.storages[0].location, "cpu");
  EXPECT_EQ(pickle.storages[0].elements, 6);
  EXPECT_THAT(pickle.tensors[0].shape, ElementsAre(2, 3));
  EXPECT_THAT(pickle.tensors[0].strides, ElementsAre(3, 1));
  EXPECT_EQ(pickle.tensors[1].offset, 3);
}

TEST(Pickle, ReadsParametersSizesAndAttributesOfDicts) {
  const std::string parameter =
      "ctorch._utils\n_rebuild_parameter\n(" + PickledTensor{}.bytes() + "\x88" + "ccollections\nOrderedDict\n)RtR";
  const Pickle pickle = parse(pickle_of("ccollections\nOrderedDict\n)R(" + pickled_text("w") + parameter + pickled_text("s") +
                                        "ctorch\nSize\n(" + pickled_tuple({4}) + "tRu}" + pickled_text("_metadata") + "}sb"));
  const PickleValue& dict = pickle.values[pickle.root];
  ASSERT_EQ(dict.items.size(), 4U);
  EXPECT_EQ(pickle.values[dict.items[1]].kind, PickleKind::tensor);
  EXPECT_EQ(pickle.values[dict.items[3]].kind, PickleKind::tuple);
}

// The offset counts from the beginning of the file, in which the pickle is at 100.
TEST(Pickle, ExecutesNothing) {
  EXPECT_THAT(error_of(pickle_of("cos\nsystem\n(" + pickled_text("true") + "tR")),
              HasSubstr("m.bin: offset 102: opcode 'c': the pickle names 'os.system', which is no tensor"));
  for (const char* name :
       {"builtins\neval", "torch\nload", "torch._utils\n_rebuild_tensor", "collections\nOrderedDict.fromkeys", "posix\nsystem"})
    EXPECT_THAT(error_of(pickle_of("c" + std::string(name) + "\n")), HasSubstr("nothing is executed")) << name;
  EXPECT_THAT(error_of(pickle_of("\x8c\x02os\x8c\x06system\x93")), HasSubstr("the pickle names 'os.system'"));
  EXPECT_THAT(error_of(pickle_of(pickled_text("x") + ")R")), HasSubstr("a call of something that is no function"));
  EXPECT_THAT(error_of(pickle_of("ctorch\nFloatStorage\n)R")), HasSubstr("a call of a storage class"));
  EXPECT_THAT(error_of(pickle_of("ccollections\nOrderedDict\n}b")), HasSubstr("attributes of something that is no dict"));
}

TEST(Pickle, RefusesUnknownOpcodes) {
  for (const char* opcode : {"i", "o", "P", "I1\n", "V", "\x81", "\x8b", "\x94\xff", "\x96", "\xff"})
    EXPECT_THAT(error_of("\x80\x02" + std::string(opcode)), HasSubstr("m.bin: offset 102: opcode ")) << opcode;
  EXPECT_THAT(error_of("\x80\x02i"), HasSubstr("opcode 'i': unknown opcode"));
  EXPECT_THAT(error_of("\x80\x01N."), HasSubstr("protocol 1; 2 to 5 are known"));
}

TEST(Pickle, RefusesEveryTruncation) {
  const std::string good = pickle_of(pickled_dict({{"a", PickledTensor{}.bytes()}}));
  ASSERT_EQ(error_of(good), "");
  for (size_t size = 0; size < good.size(); ++size) EXPECT_THAT(error_of(good.substr(0, size)), HasSubstr("m.bin: offset ")) << size;
  EXPECT_THAT(error_of(good + "N"), HasSubstr("1 bytes follow the end of the pickle"));
}

TEST(Pickle, RefusesDamagedStacks) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {".", "ends with 0 values"},
      {"NN.", "ends with 2 values"},
      {"(N.", "ends with 1 values"},
      {"0", "the stack is empty"},
      {"N(0", "the stack is empty"},  // below the mark
      {"t", "there is no mark"},
      {"]u", "there is no mark"},
      {"Na", "the stack is empty"},
      {"NNa", "adds to None as to a list"},
      {"}(Nu", "a key without a value"},
      {"h\x05", "index 5 of the memo was never stored"},
      {std::string("j\xff\xff\xff\xff", 5), "index 4294967295 of the memo was never stored"},
      {std::string("Nr\xff\xff\xff\xff", 6), "index 4294967295 of the memo, which has at most"},
      {"\x8a\x09"
       "123456789",
       "an integer of 9 bytes, more than 8"},
      {std::string("X\xff\xff\xff\x7f", 5), "a string of 2147483647 bytes, more than"},
      {std::string("X\x01\0\0\0\xff", 6), "a string that is not UTF-8"},
      {"NQ", "a persistent id: None is no tuple"},
      {")Q", "a persistent id of another form"},
  };
  for (const auto& [body, message] : cases) EXPECT_THAT(error_of("\x80\x02" + body), HasSubstr(message));
}

// A program that walks a cycle never ends. One that walks deep values overflows its stack.
TEST(Pickle, RefusesCyclesAndDeepNesting) {
  EXPECT_THAT(error_of(pickle_of("]q\x01h\x01"
                                 "a")),
              HasSubstr("adds a value to itself"));
  EXPECT_THAT(error_of(pickle_of("]q\x01]h\x01"
                                 "aq\x02"
                                 "0h\x01h\x02"
                                 "a")),
              HasSubstr("adds to a value that is already part of another one"));
  std::string deep = "]";
  for (int i = 0; i < 100'000; ++i) deep += "\x85";
  EXPECT_THAT(error_of(pickle_of(deep)), HasSubstr("values are nested deeper than 32"));
  EXPECT_THAT(error_of("\x80\x02" + std::string(100'000, '(')), HasSubstr("more than 32 marks"));
}

// Each line doubles the one before by the memo: 2^24 strings for a program that expands them, some hundred bytes here.
TEST(Pickle, HoldsSharedValuesOnce) {
  std::string body = pickled_text("x") + "q" + std::string(1, '\0');
  for (char i = 0; i < 24; ++i) body += std::string("h") + i + "h" + i + "\x86q" + static_cast<char>(i + 1);
  EXPECT_THAT(error_of("\x80\x02" + body + "."), HasSubstr("values on the stack"));
  const Pickle pickle = parse("\x80\x02](" + body + "e.");
  EXPECT_LT(pickle.values.size(), 100U);
}

TEST(Pickle, RefusesBombs) {
  EXPECT_THAT(error_of("\x80\x02" + std::string(kMaxPickleValues + 1, 'N')), HasSubstr("more than 1048576 values"));
  EXPECT_THAT(error_of("\x80\x02N" + std::string(kMaxPickleValues + 1, '2')), HasSubstr("the stack has more than 1048576 values"));
  // Arguments of a million values, which are used again and again by the memo.
  std::string body = "ctorch._utils\n_rebuild_parameter\nq\x01(" + std::string(1000, 'N') + "tq\x02";
  EXPECT_THAT(error_of("\x80\x02" + body + "h\x01h\x02R"), HasSubstr("a tuple of 1000 values, more than 16"));
}

TEST(Pickle, RefusesTensorsThatLeaveTheirStorage) {
  EXPECT_EQ(tensor_error({}), "");
  EXPECT_THAT(tensor_error({.elements = 5}), HasSubstr("it needs 6 elements from 0 on, the storage has 5"));
  EXPECT_THAT(tensor_error({.offset = 1}), HasSubstr("it needs 6 elements from 1 on"));
  EXPECT_THAT(tensor_error({.offset = 7, .shape = {0, 3}}), HasSubstr("it begins after the storage's end"));
  EXPECT_THAT(tensor_error({.offset = -1}), HasSubstr("a tensor's offset is no number of at least 0"));
  EXPECT_THAT(tensor_error({.elements = -6}), HasSubstr("a storage's size is no number of at least 0"));
  EXPECT_THAT(tensor_error({.shape = {2, -3}}), HasSubstr("a tensor's shape is no number of at least 0"));
  EXPECT_THAT(tensor_error({.strides = {3}}), HasSubstr("another number of strides than dimensions"));
  EXPECT_THAT(tensor_error({.shape = std::vector<int32_t>(17, 1), .strides = std::vector<int32_t>(17, 1)}),
              HasSubstr("a tuple of 17 values"));
  const int32_t large = 0x7fffffff;
  EXPECT_THAT(tensor_error({.shape = {large, large, large}, .strides = {0, 0, 0}}), HasSubstr("the product of its shape overflows"));
  EXPECT_THAT(tensor_error({.shape = {large, 2}, .strides = {large, 1}}), HasSubstr("it needs"));
}

// torch sets these flags where a tensor is the negative or the conjugate of its storage.
TEST(Pickle, ReadsTheFlagsOfTensors) {
  const auto unresolved = [](const std::string& metadata) {
    return parse(pickle_of(PickledTensor{.metadata = metadata}.bytes())).tensors.at(0).unresolved;
  };
  const std::string yes = "\x88", no = "\x89";
  EXPECT_EQ(unresolved("N"), nullptr);
  EXPECT_EQ(unresolved("}"), nullptr);
  EXPECT_EQ(unresolved(pickled_dict({{"neg", no}, {"conj", no}, {"other", yes}})), nullptr);
  EXPECT_STREQ(unresolved(pickled_dict({{"neg", yes}, {"conj", no}})), "neg");
  EXPECT_STREQ(unresolved(pickled_dict({{"neg", no}, {"conj", yes}})), "conj");
  EXPECT_STREQ(unresolved(pickled_dict({{"neg", yes}, {"neg", no}})), "neg");
  EXPECT_THAT(tensor_error({.metadata = pickled_text("neg")}), HasSubstr("a tensor's metadata that are no dict"));
  EXPECT_THAT(tensor_error({.metadata = pickled_dict({{"neg", "K\x01"}})}), HasSubstr("a 'neg' or 'conj' that is no boolean"));
}

TEST(Pickle, RefusesTensorsThatUseAnElementTwice) {
  EXPECT_THAT(tensor_error({.strides = {0, 1}}), HasSubstr("its strides use elements more than once"));
  EXPECT_THAT(tensor_error({.strides = {2, 1}}), HasSubstr("its strides use elements more than once"));
  EXPECT_THAT(tensor_error({.elements = 1, .shape = {1000000, 1000000}, .strides = {0, 0}}), HasSubstr("more than once"));
  EXPECT_EQ(tensor_error({.strides = {1, 2}}), "") << "transposed";
  EXPECT_EQ(tensor_error({.shape = {1, 6}, .strides = {0, 1}}), "") << "a dimension of 1 has no stride";
}

TEST(Pickle, RefusesStoragesThatContradictEachOther) {
  const auto two = [](const PickledTensor& a, const PickledTensor& b) {
    return error_of(pickle_of(pickled_dict({{"a", a.bytes()}, {"b", b.bytes()}})));
  };
  EXPECT_THAT(two({}, {.elements = 7}), HasSubstr("storage '0' has two types or sizes"));
  EXPECT_THAT(two({}, {.storage = "IntStorage"}), HasSubstr("storage '0' has two types or sizes"));
  EXPECT_EQ(two({}, {.storage = "IntStorage", .key = "1"}), "");
  EXPECT_THAT(tensor_error({.storage = "OrderedStorage"}), HasSubstr("the pickle names 'torch.OrderedStorage'"));
}

}  // namespace pickle_test
}  // namespace based
