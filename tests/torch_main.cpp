// The main function of test programs that use LibTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  const int code = RUN_ALL_TESTS();
  std::fflush(nullptr);
  std::_Exit(code);  // without the destructors of LibTorch's statics; see apps/based.cpp
}
