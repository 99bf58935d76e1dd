# simdev in a container: docker build -t simdev . && docker run --rm -v "$PWD:/work" simdev examples
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps -w /dist .

FROM python:${PYTHON}-slim
# Extras, separated by commas; fast is Numba.
ARG EXTRAS=fast
COPY constraints.txt /dist/
COPY --from=build /dist/ /dist/
RUN pip install --no-cache-dir -c /dist/constraints.txt "$(ls /dist/simdev-*.whl)[${EXTRAS}]"
# Matplotlib and Numba keep what they prepare in the home of their user.
RUN useradd --create-home --uid 1000 simdev && mkdir /work && chown simdev /work
USER simdev
WORKDIR /work
# The build fails where something is broken; the kernels of the engine are compiled here, once.
RUN simdev doctor
ENTRYPOINT ["simdev"]
CMD ["--help"]
