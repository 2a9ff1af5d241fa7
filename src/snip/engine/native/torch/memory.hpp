// Tensors as the kernels take them: where they are, whether they are still there, and memory for new ones.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/Tensor.h>

namespace {

using at::Tensor;

// The address of a tensor that a kernel takes for contiguous floats; null: it must not. The same as
// `pointer` of kernels/memory.py, which explains the conditions; a tensor without numbers has none here.
float* address_of(const Tensor& t) {
    if (!t.defined() || at::isTensorSubclassLike(t) || !t.has_storage() || !t.device().is_cpu() ||
        t.layout() != at::kStrided || t.scalar_type() != at::kFloat || t.is_neg() || !t.is_contiguous())
        return nullptr;
    size_t end = static_cast<size_t>(t.storage_offset() + t.numel()) * sizeof(float);
    return end <= t.storage().nbytes() ? t.mutable_data_ptr<float>() : nullptr;
}

// What `memory_of` of kernels/memory.py tells of a tensor.
struct Place {
    const void* data;
    c10::DispatchKeySet keys;
    caffe2::TypeMeta type;
    c10::SmallVector<int64_t, 4> sizes, strides;
    int64_t offset;
    size_t bytes;

    explicit Place(const Tensor& t)
        : data(t.const_data_ptr()),
          keys(t.key_set()),
          type(t.dtype()),
          sizes(t.sizes()),
          strides(t.strides()),
          offset(t.storage_offset()),
          bytes(t.storage().nbytes()) {}

    // The keys come first: with the same ones a tensor has a storage, sizes and strides.
    bool is(const Tensor& t) const {
        return t.defined() && t.key_set() == keys && t.dtype() == type && t.sizes() == sizes &&
               t.strides() == strides && t.storage_offset() == offset && t.storage().nbytes() == bytes &&
               t.const_data_ptr() == data;
    }
};

// Where tensors were. It holds none of them, because torch swaps only tensors that nobody else holds.
struct Places {
    std::vector<Place> each;

    explicit Places(const std::vector<Tensor>& tensors) : each(tensors.begin(), tensors.end()) {}

    bool are(const std::vector<Tensor>& tensors) const {
        if (tensors.size() != each.size()) return false;
        for (size_t i = 0; i < each.size(); i++)
            if (!each[i].is(tensors[i])) return false;
        return true;
    }
};

// A row of floats in the memory of another tensor. Not by `narrow`, which is ten times as slow.
Tensor part_of(const Tensor& whole, int64_t offset, int64_t count) {
    auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(whole.storage()), whole.key_set(),
                                                         whole.dtype());
    auto* impl = made.unsafeGetTensorImpl();
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(count);
    return made;
}

Tensor empty(at::IntArrayRef sizes) { return at::detail::empty_cpu(sizes, at::kFloat); }

// Memory that a tensor takes over from the last one, as `Reused` of kernels/memory.py: a storage that
// nobody else has is free.
struct Room {
    void (*prefer_huge_pages)(void*, int64_t);
    size_t huge;  // bytes from which a tensor is worth huge pages
    Tensor last{};

    Room(uintptr_t function, size_t bytes)
        : prefer_huge_pages(reinterpret_cast<void (*)(void*, int64_t)>(function)), huge(bytes) {}

    Tensor floats(int64_t count) {
        if (!last.defined() || last.numel() != count || last.storage().use_count() > 1) {
            last = empty(count);
            if (last.nbytes() >= huge)
                prefer_huge_pages(last.mutable_data_ptr(), static_cast<int64_t>(last.nbytes()));
        }
        return part_of(last, 0, count);
    }
};

}  // namespace
