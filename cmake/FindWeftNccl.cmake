# NCCL, the CUDA runtime and NVRTC for device memory in weft/comm: headers to compile with, and the libraries that the program loads when
# a job asks for device memory (weft/comm/nccl_api.h). Nothing is linked, and no nvcc is needed. The wheels of PyPI have folders of
# their own; with them, for example
#   pip install nvidia-nccl-cu13 nvidia-cuda-runtime nvidia-cuda-nvrtc nvidia-cuda-crt nvidia-cuda-cccl
#   cmake ... -DWEFT_NCCL=ON -DWEFT_CUDA_ROOT=$SITE/nvidia/cu13 -DWEFT_NCCL_ROOT=$SITE/nvidia/nccl
option(WEFT_NCCL "Communication of device memory by NCCL; needs CUDA 12.8 or newer" OFF)
set(WEFT_CUDA_ROOT "" CACHE STRING "folders with include/ and lib/ of CUDA, separated by semicolons; empty: where CMake looks and /usr/local/cuda")
set(WEFT_NCCL_ROOT "" CACHE STRING "folder with include/ and lib/ of NCCL; empty: where CMake looks")
if(WEFT_NCCL)
  set(_weft_cuda ${WEFT_CUDA_ROOT} /usr/local/cuda)
  find_path(WEFT_CUDA_INCLUDE NAMES cuda_runtime_api.h HINTS ${_weft_cuda} PATH_SUFFIXES include)
  find_path(WEFT_CUDA_CRT_INCLUDE NAMES crt/host_defines.h HINTS ${_weft_cuda} PATH_SUFFIXES include)  # a wheel of its own
  find_path(WEFT_NVRTC_INCLUDE NAMES nvrtc.h HINTS ${_weft_cuda} PATH_SUFFIXES include)
  find_path(WEFT_NCCL_INCLUDE NAMES nccl.h HINTS ${WEFT_NCCL_ROOT} PATH_SUFFIXES include)
  # By the names that the program will load: wheels have no links without a version.
  find_library(WEFT_CUDART_LIBRARY NAMES libcudart.so.13 libcudart.so.12 HINTS ${_weft_cuda} PATH_SUFFIXES lib lib64)
  find_library(WEFT_NVRTC_LIBRARY NAMES libnvrtc.so.13 libnvrtc.so.12 HINTS ${_weft_cuda} PATH_SUFFIXES lib lib64)
  find_library(WEFT_NCCL_LIBRARY NAMES libnccl.so.2 HINTS ${WEFT_NCCL_ROOT} PATH_SUFFIXES lib lib64)
  include(FindPackageHandleStandardArgs)
  find_package_handle_standard_args(WeftNccl
    REQUIRED_VARS WEFT_NCCL_LIBRARY WEFT_NCCL_INCLUDE WEFT_CUDART_LIBRARY WEFT_CUDA_INCLUDE WEFT_CUDA_CRT_INCLUDE WEFT_NVRTC_LIBRARY WEFT_NVRTC_INCLUDE
    REASON_FAILURE_MESSAGE "WEFT_NCCL=ON needs NCCL, the CUDA runtime with crt/, and NVRTC: set WEFT_CUDA_ROOT and WEFT_NCCL_ROOT (cmake/FindWeftNccl.cmake), or leave it off")
endif()

# weft_use_nccl(TARGET): its sources may include weft/comm/nccl_api.h.
function(weft_use_nccl target)
  target_compile_definitions(${target} PRIVATE WEFT_HAVE_NCCL WEFT_CUDART_LIBRARY="${WEFT_CUDART_LIBRARY}"
                             WEFT_NVRTC_LIBRARY="${WEFT_NVRTC_LIBRARY}" WEFT_NCCL_LIBRARY="${WEFT_NCCL_LIBRARY}")
  target_include_directories(${target} SYSTEM PRIVATE ${WEFT_CUDA_INCLUDE} ${WEFT_CUDA_CRT_INCLUDE} ${WEFT_NVRTC_INCLUDE} ${WEFT_NCCL_INCLUDE})
endfunction()
