#include "based/core/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/core/pickles.h"

namespace based {
namespace torch_file_test {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class T>
std::string raw(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}
const std::string kSix = raw<float>({0, 1, 2, 3, 4, 5});

TorchIndex parse(const std::string& file) { return parse_torch_file(std::as_bytes(std::span(file)), "m.bin"); }
std::string error_of(const std::string& file) {
  return message_of<Error>([&] { parse(file); });
}
std::vector<float> floats(const TensorView& tensor) {
  std::vector<float> numbers(tensor.bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), tensor.bytes.data(), tensor.bytes.size());
  return numbers;
}
std::string one_tensor(const PickledTensor& tensor, const std::vector<std::pair<std::string, std::string>>& storages) {
  return torch_file_of(pickle_of(pickled_dict({{"a", tensor.bytes()}})), storages);
}

TEST(TorchFile, GivesTheTensorsInTheirOrder) {
  const std::string file = torch_file_of(
      pickle_of(pickled_dict({{"z", PickledTensor{}.bytes()},
                              {"a", PickledTensor{.storage = "LongStorage", .key = "n", .elements = 1, .shape = {}, .strides = {}}.bytes()},
                              {"tied", PickledTensor{}.bytes()}})),
      {{"0", kSix}, {"n", raw<int64_t>({7})}});
  const TorchIndex index = parse(file);
  ASSERT_EQ(index.tensors.size(), 3U);
  EXPECT_EQ(index.tensors[0].name, "z");
  EXPECT_THAT(index.tensors[0].shape, ElementsAre(2, 3));
  EXPECT_THAT(floats(index.tensors[0]), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(index.tensors[1].dtype, DType::I64);
  EXPECT_TRUE(index.tensors[1].shape.empty());
  EXPECT_EQ(index.tensors[2].bytes.data(), index.tensors[0].bytes.data());
}

TEST(TorchFile, MakesTransposedTensorsDense) {
  const std::string file = one_tensor({.shape = {3, 2}, .strides = {1, 3}}, {{"0", kSix}});
  const TorchIndex index = parse(file);
  EXPECT_THAT(floats(index.tensors.at(0)), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(TorchFile, RefusesTensorsThatAreNotTheirStorages) {
  for (const std::string flag : {"neg", "conj"})
    EXPECT_THAT(error_of(one_tensor({.metadata = pickled_dict({{flag, "\x88"}})}, {{"0", kSix}})),
                AllOf(HasSubstr("m.bin: offset "), HasSubstr("tensor 'a' has the flag '" + flag + "'"),
                      HasSubstr("save tensor.resolve_" + flag + "() in its place")));
  EXPECT_EQ(error_of(one_tensor({.metadata = pickled_dict({{"neg", "\x89"}})}, {{"0", kSix}})), "");
}

TEST(TorchFile, SaysWhereTheTensorsAre) {
  const std::string nested = pickled_dict({{"epoch", pickled_number(3)}, {"model", pickled_dict({{"a", PickledTensor{}.bytes()}})}});
  EXPECT_THAT(
      error_of(torch_file_of(pickle_of(nested), {{"0", kSix}})),
      HasSubstr("the tensors are below the entry 'model'; save this entry by itself, in Python torch.save(torch.load(FILE)['model']"));
  EXPECT_THAT(error_of(torch_file_of(pickle_of(pickled_number(3)), {})), HasSubstr("the file holds an integer, not a dict of tensors"));
  EXPECT_THAT(error_of("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"),
              HasSubstr("m.bin: is a pointer of Git LFS, not the file itself"));
}

TEST(TorchFile, ReadsTheStateDictOfATrainersFile) {
  const std::string file =
      torch_file_of(pickle_of(pickled_dict({{"epoch", pickled_number(3)}, {"state_dict", pickled_dict({{"a", PickledTensor{}.bytes()}})}})),
                    {{"0", kSix}});
  const TorchIndex index = parse(file);
  ASSERT_EQ(index.tensors.size(), 1U);
  EXPECT_THAT(index.other_entries, ElementsAre("epoch"));
}

TEST(TorchFile, RefusesEveryTruncationAndMostDamage) {
  const std::string good = one_tensor({}, {{"0", kSix}});
  ASSERT_EQ(error_of(good), "");
  for (size_t size = 0; size < good.size(); ++size) EXPECT_THAT(error_of(good.substr(0, size)), HasSubstr("m.bin: ")) << size;
  const TorchIndex index = parse(good);
  std::string damaged = good;
  damaged[static_cast<size_t>(reinterpret_cast<const char*>(index.tensors[0].bytes.data()) - good.data())] ^= 1;
  EXPECT_THAT(error_of(damaged), HasSubstr("member 'm/data/0' is damaged"));
}

TEST(TorchFile, NamesTheFault) {
  const std::vector<std::pair<std::string, std::string>> six{{"0", kSix}};
  const std::string tensor = PickledTensor{}.bytes();
  EXPECT_THAT(error_of(one_tensor({}, {})), HasSubstr("the archive has no member for storage '0'"));
  EXPECT_THAT(error_of(one_tensor({.elements = 7}, six)), HasSubstr("storage '0' has 24 bytes, and its 7 elements of F32 need 28"));
  EXPECT_THAT(error_of(one_tensor({.storage = "DoubleStorage"}, six)), HasSubstr("need 48"));
  EXPECT_THAT(error_of(one_tensor({.key = "../data/0"}, six)), HasSubstr("the archive has no member for storage '../data/0'"));
  EXPECT_THAT(error_of(torch_file_of(pickle_of("]"), six)), HasSubstr("the file holds a list, not a dict of tensors"));
  EXPECT_THAT(error_of(torch_file_of(pickle_of(pickled_dict({{"a", tensor}, {"a", tensor}})), six)),
              HasSubstr("the name 'a' occurs twice"));
  EXPECT_THAT(error_of(torch_file_of(pickle_of("}K\x01" + tensor + "s"), six)), HasSubstr("a dict of tensors with an integer as a key"));
  EXPECT_THAT(error_of(torch_file_of(pickle_of(pickled_dict({})), six, "big")), HasSubstr("the byte order is 'big'"));
  EXPECT_THAT(error_of("\x80\x02junk"), HasSubstr("a bare pickle, as torch wrote before version 1.6"));
  EXPECT_THAT(error_of("PK junk that is long enough for the end of an archive"), HasSubstr("not a zip archive"));
}

TEST(TorchFile, RefusesTensorsThatShareAPartOfTheirBytes) {
  const std::vector<std::pair<std::string, std::string>> six{{"0", kSix}};
  const auto two = [&](const PickledTensor& a, const PickledTensor& b) {
    return error_of(torch_file_of(pickle_of(pickled_dict({{"a", a.bytes()}, {"b", b.bytes()}})), six));
  };
  const PickledTensor first{.shape = {3}, .strides = {1}}, second{.offset = 3, .shape = {3}, .strides = {1}};
  EXPECT_EQ(two(first, second), "") << "the halves of one storage";
  EXPECT_EQ(two(first, first), "") << "tied";
  EXPECT_THAT(two(first, {.offset = 2, .shape = {3}, .strides = {1}}), HasSubstr("tensors 'a' and 'b' share a part of their bytes"));
  EXPECT_THAT(two(first, {}), HasSubstr("share a part of their bytes"));
  EXPECT_THAT(two({.shape = {3, 2}, .strides = {1, 3}}, first), HasSubstr("tensor 'a' is not dense and shares its storage"));
}

TEST(TorchFile, IsWrittenAsItIsRead) {
  const TemporaryFolder folder;
  const std::array<int64_t, 1> count{9};
  const std::span<const std::byte> six = std::as_bytes(std::span(kSix));
  const std::vector<TensorView> tensors{{"embedding", DType::F32, {2, 3}, six},
                                        {"count", DType::I64, {}, std::as_bytes(std::span(count))},
                                        {"head", DType::F32, {2, 3}, six},
                                        {"filter", DType::F32, {2, 1, 3}, six},
                                        {"none", DType::F32, {0, 4}, {}}};
  write_torch_file(folder.file("pytorch_model.bin"), tensors);
  const TorchFile file(folder.file("pytorch_model.bin"));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(file.tensors()[i].name, tensors[i].name);
    EXPECT_EQ(file.tensors()[i].dtype, tensors[i].dtype);
    EXPECT_EQ(file.tensors()[i].shape, tensors[i].shape);
    EXPECT_TRUE(std::ranges::equal(file.tensors()[i].bytes, tensors[i].bytes)) << tensors[i].name;
  }
  EXPECT_EQ(file.tensors()[0].bytes.data(), file.tensors()[2].bytes.data()) << "tied tensors are stored once";
}

}  // namespace torch_file_test
}  // namespace based
