// A matrix of whatever the arithmetic in use computes with. Rows and columns are counted from 0, where the paper counts from 1.
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
  explicit Matrix(Size of = {}, T fill = T()) : size(of), cells(static_cast<size_t>(of.rows * of.columns), fill) {}
  T* row(int64_t i) { return cells.data() + i * size.columns; }
  const T* row(int64_t i) const { return cells.data() + i * size.columns; }
  T& at(int64_t i, int64_t j) { return row(i)[j]; }
  const T& at(int64_t i, int64_t j) const { return row(i)[j]; }
  bool operator==(const Matrix&) const = default;

  Size size;
  std::vector<T> cells;
};

using IntMatrix = Matrix<int64_t>;

// The top left part of `from` in a matrix of `size`; what `from` lacks is T().
template <class T>
Matrix<T> corner(const Matrix<T>& from, Size size) {
  Matrix<T> to(size);
  for (int64_t i = 0; i < size.rows && i < from.size.rows; ++i)
    for (int64_t j = 0; j < size.columns && j < from.size.columns; ++j) to.at(i, j) = from.at(i, j);
  return to;
}

}  // namespace based::theory
