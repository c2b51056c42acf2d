// A matrix with entries of any arithmetic (see integers.h). Rows and columns are counted from 0; the paper counts from 1.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace based::theory {

struct Size {
  int64_t rows = 0, columns = 0;
  bool operator==(const Size&) const = default;
};

template <class T>
struct Matrix {
  explicit Matrix(Size shape = {}, T fill = T()) : size(shape), cells(static_cast<size_t>(shape.rows * shape.columns), fill) {}
  T* row(int64_t i) { return cells.data() + i * size.columns; }
  const T* row(int64_t i) const { return cells.data() + i * size.columns; }
  T& at(int64_t i, int64_t j) { return row(i)[j]; }
  const T& at(int64_t i, int64_t j) const { return row(i)[j]; }
  bool operator==(const Matrix&) const = default;

  Size size;
  std::vector<T> cells;
};

using IntMatrix = Matrix<int64_t>;

// A matrix of the given size with the top left part of `from`. Entries outside of `from` are T().
template <class T>
Matrix<T> corner(const Matrix<T>& from, Size size) {
  Matrix<T> to(size);
  for (int64_t i = 0; i < size.rows && i < from.size.rows; ++i)
    for (int64_t j = 0; j < size.columns && j < from.size.columns; ++j) to.at(i, j) = from.at(i, j);
  return to;
}

}  // namespace based::theory
