# An image of the daemon, for hypervisors that run services in containers. systemd/imds.service has the stronger sandbox.
#
#   docker run --network host --read-only --cap-drop ALL --env-file imds.env --volume imds:/var/lib/imds --volume /run/imds:/run/imds imds
#
# It needs the network of the hypervisor, because guests are identified by their addresses there. The user is not root and has no capability, so allow
# port 80 on the hypervisor with `sysctl net.ipv4.ip_unprivileged_port_start=80`. The address comes from systemd/imds-address.service.
# /run/imds has the unix socket for imdsctl and the firewall's agent: create it on the hypervisor, owned by the user of the image (1000), mode 0750.
# There is no HEALTHCHECK, because it would start a second Node.js each time. Ask /livez and /readyz of the operators' listener instead.

ARG NODE_IMAGE=node:26-slim

FROM ${NODE_IMAGE} AS build
WORKDIR /build
COPY package.json package-lock.json ./
# Without scripts: the script of the development dependency "node" would download a second runtime.
RUN npm ci --ignore-scripts
COPY tsconfig.json tsconfig.build.json rolldown.config.js ./
COPY src src
# The image is that of the daemon: imds-api runs elsewhere.
RUN npm run build && rm -r dist/api*.js dist/swagger-ui

FROM ${NODE_IMAGE}
ENV NODE_ENV=production
WORKDIR /opt/imds
RUN install -d -o node -g node -m 700 /var/lib/imds && install -d -o node -g node -m 750 /run/imds
COPY --from=build /build/package.json ./
COPY --from=build /build/dist dist
VOLUME /var/lib/imds /run/imds
USER node
STOPSIGNAL SIGTERM
ENTRYPOINT ["node", "--max-semi-space-size=2", "--max-old-space-size=1024", "--no-parallel-scavenge", "--no-allocation-site-pretenuring", "dist/main.js"]
